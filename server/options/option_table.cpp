#include "server/options/option_table.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "engine/base/rank_limit.h"

namespace lockstep {
namespace {

constexpr unsigned kLoading = kServe | kGenerate | kBench | kEvaluate;
constexpr unsigned kAll = kLoading | kPlan;
// Commands that several hosts can do together.
constexpr unsigned kGroups = kServe | kGenerate | kBench | kPlan;
constexpr bool kReloadable = true;

uint32_t count_or_automatic(const Json& value) {
  return value.is_string() ? 0 : value.get<uint32_t>();
}

std::optional<uint32_t> count_if_given(const Json& value) {
  return value.is_string() ? std::nullopt : std::optional(value.get<uint32_t>());
}

std::string name_or_automatic(const Json& value) {
  return value == "auto" ? "" : value.get<std::string>();
}

// "3:1.5" as numbers; none if it is not such a list.
std::optional<std::vector<double>> parse_shares(std::string_view text) {
  std::vector<double> shares;
  while (true) {
    const size_t end = std::min(text.find(':'), text.size());
    double share = 0;
    const char* const first = text.data();
    const auto [rest, error] = std::from_chars(first, first + end, share);
    if (error != std::errc() || rest != text.data() + end || !(share > 0) || share > 1e6) {
      return std::nullopt;
    }
    shares.push_back(share);
    if (end == text.size()) return shares;
    text.remove_prefix(end + 1);
  }
}

void set_shares(const Json& value, Options& options) {
  const auto& text = value.get_ref<const std::string&>();
  options.engine.measure_shares = text == "auto";
  options.engine.shares = parse_shares(text).value_or(std::vector<double>());
}

DirectIo direct_io_from(const Json& value) {
  if (value.is_string()) return DirectIo::kAuto;
  return value.get<bool>() ? DirectIo::kYes : DirectIo::kNo;
}

std::chrono::milliseconds seconds_of(const Json& value) {
  return std::chrono::milliseconds(std::llround(value.get<double>() * 1000));
}

const std::vector<OptionRow>& rows() {
  using enum OptionType;
  // An option is read in a few lines, not in one line per field.
  // clang-format off
  static const std::vector<OptionRow> table = {
      {"model", kAll, kText, "", 0, 0, {},
       "The GGUF file to serve; the first part of one that is split",
       [](const Json& v, Options& o) { o.engine.model = v.get<std::string>(); }},
      {"served-model-name", kServe, kTextList, Json::array(), 0, 0, {},
       "Names that requests may use for the model; the first is listed first. * among them: any "
       "other, too. None: the name in the file",
       [](const Json& v, Options& o) { o.served_model_names = v.get<std::vector<std::string>>(); }},
      {"host", kServe | kCheckHealth, kText, "127.0.0.1", 0, 0, {},
       "Address to listen on, 0.0.0.0 or :: for all; unix:PATH for a Unix socket; systemd for the "
       "sockets that a service manager passes (those are taken in any case). See --api-keys and "
       "--tls-certificate before opening it to others",
       [](const Json& v, Options& o) { o.http.host = v.get<std::string>(); }},
      {"port", kServe | kCheckHealth, kInteger, 8080, 0, 65535, {},
       "Port to listen on; 0 takes any free one, which the log names",
       [](const Json& v, Options& o) { o.http.port = v.get<uint16_t>(); }},
      {"socket-mode", kServe, kChoice, "0660", 0, 0, {"0600", "0660", "0666"},
       "Permissions of a Unix socket: anyone who may write to it may connect",
       [](const Json& v, Options& o) {
         o.http.socket_mode =
             static_cast<uint32_t>(std::stoul(v.get<std::string>(), nullptr, 8));
       }},
      {"probe-host", kServe | kCheckHealth, kText, "", 0, 0, {},
       "Second address to listen on, for health and metrics alone, or unix:PATH: with a socket and "
       "threads of their own they answer whatever crowd is at the first. Empty: none",
       [](const Json& v, Options& o) { o.probe_host = v.get<std::string>(); }},
      {"probe-port", kServe | kCheckHealth, kInteger, 8081, 0, 65535, {},
       "Port of --probe-host; 0 takes any free one, which the log names",
       [](const Json& v, Options& o) { o.probe_port = v.get<uint16_t>(); }},
      {"tls-certificate", kServe | kCheckHealth, kText, "", 0, 0, {},
       "Certificate in PEM, followed by those that lead to its issuer; with it and --tls-key "
       "clients over IP speak TLS. SIGHUP reads both again",
       [](const Json& v, Options& o) { o.http.tls_certificate = v.get<std::string>(); }},
      {"tls-key", kServe, kText, "", 0, 0, {},
       "The certificate's private key in PEM, not encrypted",
       [](const Json& v, Options& o) { o.http.tls_key = v.get<std::string>(); }},
      {"api-keys", kServe, kText, "", 0, 0, {},
       "JSON file of API keys and their limits, see README; with it every path but /health and "
       "the page's files needs a key. SIGHUP reads it again",
       [](const Json& v, Options& o) { o.api_keys = v.get<std::string>(); }},
      {"metrics-without-key", kServe, kBoolean, false, 0, 0, {},
       "Whether GET /metrics needs no key though there are some; where there is a --probe-host, "
       "there alone",
       [](const Json& v, Options& o) { o.metrics_without_key = v.get<bool>(); }},
      {"cors-origin", kServe, kTextList, Json::array(), 0, 0, {},
       "Origins whose pages may use the server (https://chat.example.org), or * for any",
       [](const Json& v, Options& o) { o.http.cors_origins = v.get<std::vector<std::string>>(); }},
      {"allowed-hosts", kServe, kTextList, Json::array(), 0, 0, {},
       "Names that requests from this machine may call the server by (their Host) where there are "
       "no --api-keys, besides localhost, IP addresses, the machine's name and --host; *: any",
       [](const Json& v, Options& o) { o.allowed_hosts = v.get<std::vector<std::string>>(); }},
      {"context", kServe | kGenerate | kBench | kPlan, kIntegerOrAuto, "auto", 16, 16777216, {},
       "Tokens of one sequence at most, prompt and generated; auto: what fits in memory, up "
       "to the model's own",
       [](const Json& v, Options& o) { o.engine.context_tokens = count_or_automatic(v); }},
      {"kv-pages", kServe | kPlan | kSimulate, kIntegerOrAuto, "auto", 1, 16777216, {},
       "Pages (64 tokens) of the KV cache; auto: for as many full sequences as run at once, or "
       "what fits. With fewer, sequences that find none are computed again later",
       [](const Json& v, Options& o) { o.engine.kv_pages = count_or_automatic(v); }},
      {"sequences", kServe | kPlan | kSimulate, kInteger, 8, 1, 1024, {},
       "Sequences in the running batch at most",
       [](const Json& v, Options& o) { o.engine.sequence_count = v.get<uint32_t>(); }},
      {"devices", kAll, kText, "auto", 0, 0, {},
       "What computes: cpu (every NUMA node), gpu (every GPU), all (both), or some by name "
       "(gpu0,gpu1 or gpu0,node1); auto: every GPU when the model fits on them, else GPUs and "
       "nodes or nodes alone, as is faster",
       [](const Json& v, Options& o) { o.engine.devices = v.get<std::string>(); }},
      {"ranks", kAll, kIntegerOrAuto, "auto", 1, kRanksMax, {},
       "Places that compute, each with its slice of every weight in its own memory; auto: one "
       "per NUMA node of --devices that has processors and memory, or one in all where that is "
       "measured to generate faster; a GPU is one",
       [](const Json& v, Options& o) { o.engine.rank_count = count_or_automatic(v); }},
      {"shares", kAll, kShares, "even", 0, 0, {},
       "How the ranks share the work: even (by their workers; GPUs of one kind evenly, of several "
       "kinds, and among nodes, by memory bandwidth, measured at start), auto (all by the memory "
       "bandwidth that each reaches, measured at start), or numbers like 3:1, one per rank, GPUs "
       "first",
       set_shares},
      {"gpu-expert-layers", kAll, kIntegerOrAuto, "auto", 0, 65536, {},
       "Of a mixture of experts on GPUs and nodes: of how many layers, the last ones, the GPUs "
       "have the experts; auto: as many as there is space for beside the cache",
       [](const Json& v, Options& o) {
         if (!v.is_string()) o.engine.gpu_expert_layers = v.get<uint32_t>();
       }},
      {"strategy", kAll, kChoice, "auto", 0, 0, {"auto", "gather", "reduce", "layers"},
       "How products are split over ranks: gather (by output rows; the same bits for any "
       "ranks), reduce (partial sums, half the exchanges), layers (each GPU has whole layers, and "
       "the bits of one), auto: gather, but reduce where a GPU is one of several ranks",
       [](const Json& v, Options& o) { o.engine.strategy = v.get<std::string>(); }},
      {"exchange-format", kAll, kChoice, "f32", 0, 0, {"f32", "bf16"},
       "Number format in which the partial sums of strategy reduce travel; bf16 halves the bytes "
       "(between GPUs alone: those of prompts)",
       [](const Json& v, Options& o) { o.engine.exchange_format = v.get<std::string>(); }},
      {"workers", kAll, kIntegerOrAuto, "auto", 1, 1024, {},
       "Threads of each rank that compute; auto: one per physical core of its own",
       [](const Json& v, Options& o) { o.engine.worker_count = count_or_automatic(v); }},
      {"reserve-cpus", kAll, kIntegerOrAuto, "auto", 0, 1024, {},
       "Physical cores without a worker, for HTTP and the system; auto: 1 from 8 cores up",
       [](const Json& v, Options& o) {
         if (!v.is_string()) o.engine.reserved_cores = v.get<uint32_t>();
       }},
      {"direct-io", kLoading, kBooleanOrAuto, "auto", 0, 0, {},
       "Whether the model file is read past the page cache, where its file system can; auto: but "
       "what lies in the page cache already is copied from there",
       [](const Json& v, Options& o) { o.engine.direct_io = direct_io_from(v); }},
      {"lock-memory", kServe | kGenerate, kBoolean, false, 0, 0, {},
       "Lock weights, KV cache and activations in memory, so that they are never swapped out; "
       "where the system refuses, so does the daemon",
       [](const Json& v, Options& o) { o.engine.lock_memory = v.get<bool>(); }},
      {"keep-weights", kServe, kChoice, "auto", 0, 0, {"auto", "true", "false"},
       "Whether the service manager keeps weights and KV memory for the next start, which then "
       "reads no weights; auto: where memfds are given huge pages",
       [](const Json& v, Options& o) { o.keep_weights = v.get<std::string>(); }},
      {"batch-tokens", kAll | kSimulate, kIntegerOrAuto, "auto", 1, 65536, {},
       "Tokens of one pass at most; longer prompts are cut into several; auto: 512, and 2048 where "
       "only GPUs compute and have space for it",
       [](const Json& v, Options& o) { o.engine.batch_tokens = count_or_automatic(v); }},
      {"kv-format", kAll, kChoice, "f16", 0, 0, {"f16", "bf16", "f32", "q8_0", "q4_h", "q4_0"},
       "Number format of the KV cache; q8_0 takes half of f16, q4_h and q4_0 a quarter, all of "
       "them for heads of 32, 64, 96 ... dimensions. q4_h turns heads first, which costs less "
       "accuracy; those of 4 bits are for processors alone",
       [](const Json& v, Options& o) { o.engine.kv_format = v.get<std::string>(); }},
      {"kv-key-format", kAll, kChoice, "auto", 0, 0,
       {"auto", "f16", "bf16", "f32", "q8_0", "q4_h", "q4_0"},
       "Number format of keys; auto: --kv-format's. Other ones than values' are for processors",
       [](const Json& v, Options& o) { o.engine.kv_key_format = name_or_automatic(v); }},
      {"kv-value-format", kAll, kChoice, "auto", 0, 0,
       {"auto", "f16", "bf16", "f32", "q8_0", "q4_h", "q4_0"},
       "Number format of values; auto: --kv-format's",
       [](const Json& v, Options& o) { o.engine.kv_value_format = name_or_automatic(v); }},
      {"cache-memory", kServe, kInteger, 0, 0, 16777216, {},
       "MiB of the host's memory, set aside at the start, for pages that make way in the KV cache; "
       "0: none",
       [](const Json& v, Options& o) { o.engine.cache_memory_bytes = v.get<uint64_t>() << 20U; }},
      {"cache-dir", kServe, kText, "", 0, 0, {},
       "Directory for files of pages that make way in the KV cache, and of the others at the end: "
       "a conversation goes on after a restart where it ended. One daemon's alone. Empty: none",
       [](const Json& v, Options& o) { o.engine.cache_directory = v.get<std::string>(); }},
      {"cache-disk", kServe, kInteger, 16, 1, 16777216, {},
       "GiB that the files of --cache-dir take at most; the oldest use makes way",
       [](const Json& v, Options& o) { o.engine.cache_disk_bytes = v.get<uint64_t>() << 30U; }},
      {"isa", kAll, kText, "auto", 0, 0, {},
       "Instruction set of the kernels (scalar, avx2, avx512, avx512bf16, amx); auto: the best "
       "this machine has",
       [](const Json& v, Options& o) { o.engine.instruction_set = name_or_automatic(v); }},
      {"arithmetic", kAll, kChoice, "auto", 0, 0, {"auto", "exact", "fast"},
       "exact: prompts and generation compute one function, the same on every machine; fast: each "
       "the fastest there is; auto: what the instruction set's table says",
       [](const Json& v, Options& o) { o.engine.arithmetic = v.get<std::string>(); }},
      {"hosts", kGroups, kTextList, Json::array(), 0, 0, {},
       "NAME:PORT of every host that computes the model together with this one, itself among them, "
       "the leader's first; the same list on all. Each has the file. The leader answers requests. "
       "None: this host alone",
       [](const Json& v, Options& o) { o.hosts.addresses = v.get<std::vector<std::string>>(); }},
      {"host-index", kGroups, kIntegerOrAuto, "auto", 0, 255, {},
       "This host's place among them; 0 leads; auto: LWS_WORKER_INDEX, which Kubernetes sets",
       [](const Json& v, Options& o) { o.hosts.index = count_if_given(v); }},
      {"host-count", kGroups, kIntegerOrAuto, "auto", 1, 256, {},
       "Instead of --hosts: how many there are, which find one another by --leader; auto: "
       "LWS_GROUP_SIZE, else 1",
       [](const Json& v, Options& o) { o.hosts.count = count_if_given(v); }},
      {"leader", kGroups, kText, "", 0, 0, {},
       "With --host-count: NAME:PORT of the leader. Empty: LWS_LEADER_ADDRESS, port 7070",
       [](const Json& v, Options& o) { o.hosts.leader = v.get<std::string>(); }},
      {"hosts-group", kGroups, kText, "", 0, 0, {},
       "The group's name, by which hosts of another are turned away that know its secret. Empty: "
       "LWS_LEADER_ADDRESS, else the addresses of --hosts",
       [](const Json& v, Options& o) { o.hosts.group = v.get<std::string>(); }},
      {"hosts-secret", kGroups, kText, "", 0, 0, {},
       "File with the secret that all hosts share, 16 bytes or more: they talk over TLS, and "
       "those that do not know it are turned away",
       [](const Json& v, Options& o) { o.hosts.secret_file = v.get<std::string>(); }},
      {"insecure-hosts", kGroups, kBoolean, false, 0, 0, {},
       "Whether hosts may do without a secret: others that reach their ports can read prompts and "
       "answers, and change them",
       [](const Json& v, Options& o) { o.hosts.insecure = v.get<bool>(); }},
      {"host-seconds", kGroups, kNumber, 5.0, 0.5, 600, {},
       "Seconds for which a host may be silent until it counts as lost, and requests fail",
       [](const Json& v, Options& o) { o.hosts.silent_seconds = v.get<double>(); }},
      {"hosts-transport", kGroups, kChoice, "tcp", 0, 0, {"tcp", "ucx", "mpi", "nccl"},
       "How hosts exchange during a pass: tcp, encrypted where there is a secret; ucx, for "
       "networks with RDMA, or mpi, where mpirun or srun has started all hosts; GPUs always by "
       "nccl. All but tcp encrypt nothing: with --insecure-hosts, where the library is",
       [](const Json& v, Options& o) { o.hosts.transport = v.get<std::string>(); }},
      {"gpu-launch-overlap", kLoading, kBoolean, true, 0, 0, {},
       "Whether a kernel's blocks may begin while those of the one before it end, on GPUs that can "
       "(compute capability 9.0 and later); false: to measure in pairs and to find faults",
       [](const Json& v, Options& o) { o.engine.gpu_launch_overlap = v.get<bool>(); }},
      {"gpu-pass-ahead", kLoading, kBoolean, true, 0, 0, {},
       "Whether a GPU that computes alone may begin a pass before the tokens of the one before are "
       "known to the host; false: to measure in pairs and to find faults",
       [](const Json& v, Options& o) { o.engine.gpu_pass_ahead = v.get<bool>(); }},
      {"nccl-peer-access", kLoading, kBoolean, true, 0, 0, {},
       "Whether NCCL may use peer access between GPUs; false: its sums go through the host's "
       "memory, also where a driver promises access that does not happen",
       [](const Json& v, Options& o) { o.engine.nccl_peer_access = v.get<bool>(); }},
      {"gpu-deadline", kLoading, kInteger, 4, 1, 3600, {},
       "Seconds that a pass on GPUs may take, after which a GPU counts as lost; they wait three "
       "quarters of it for one another. More than 4 is for profilers and sanitizers",
       [](const Json& v, Options& o) { o.engine.gpu_deadline_seconds = v.get<uint32_t>(); }},
      {"without-fusion", kAll, kTextList, Json::array(), 0, 0, {},
       "Diagnosis: rules that make several operations one step, switched off (gate, activation, "
       "mixture-gate, residual, mixture-sum, qkv, convolutions, delta-net, heads, select, norm, "
       "or all): the same answers in more steps, on processors alone",
       [](const Json& v, Options& o) {
         o.engine.without_fusion = v.get<std::vector<std::string>>();
       }},
      {"waiting-requests", kServe | kSimulate, kInteger, 1024, 0, 1000000, {},
       "Requests that may wait for a place in the batch; more are answered with 503",
       [](const Json& v, Options& o) { o.engine.waiting_requests = v.get<uint32_t>(); },
        kReloadable},
      {"waiting-prompt-tokens", kServe | kSimulate, kInteger, 262144, 1, 1000000000, {},
       "Tokens of the prompts that may wait for a place in the batch; more are answered with 503",
       [](const Json& v, Options& o) { o.engine.waiting_prompt_tokens = v.get<uint32_t>(); },
        kReloadable},
      {"first-token-target", kServe | kSimulate, kNumber, 2, 0, 3600, {},
       "Seconds from a request to its first token for which passes are sized: prompts get more of "
       "a pass the more of them wait. 0: they get a tenth of a second, and go as they come",
       [](const Json& v, Options& o) { o.engine.first_token_target_seconds = v.get<double>(); }},
      {"token-target", kServe | kSimulate, kNumber, 0.5, 0, 3600, {},
       "Seconds from a token of a stream to the next one: prompts beside it make no pass longer, "
       "unless one with 32 of their tokens is. 0: as for --first-token-target",
       [](const Json& v, Options& o) { o.engine.token_target_seconds = v.get<double>(); }},
      {"speculate", kServe | kGenerate | kPlan, kChoice, "auto", 0, 0,
       {"auto", "none", "ngram", "draft", "ngram,draft", "mtp", "ngram,mtp", "eagle3",
        "ngram,eagle3"},
       "What drafts tokens that a pass verifies beside the next one, where that pays; answers are "
       "the same with any. ngram: what stood behind the text's end where it stood before; draft: "
       "the draft model; mtp: a block of the model's own, or a gemma4-assistant file as "
       "draft model; eagle3: an EAGLE-3 file as draft model; auto: n-grams and the draft model",
       [](const Json& v, Options& o) { o.engine.speculate = v.get<std::string>(); }},
      {"draft-model", kServe | kGenerate | kPlan, kText, "", 0, 0, {},
       "The GGUF file of a smaller model with the same tokens, or of EAGLE-3 or an assistant for "
       "the model, which drafts at the same places",
       [](const Json& v, Options& o) { o.engine.draft_model = v.get<std::string>(); }},
      {"draft-tokens", kServe | kGenerate | kPlan, kIntegerOrAuto, "auto", 0, 15, {},
       "Drafted tokens of a request in a pass; auto: as many as pay, by how many were right of "
       "late and by what passes take",
       [](const Json& v, Options& o) { o.engine.draft_tokens = count_if_given(v); }},
      {"request-seconds", kServe, kNumber, 0, 0, 86400, {},
       "Time after which a request ends with 504, waiting included; a request may ask for less; "
       "0: none",
       [](const Json& v, Options& o) { o.request_seconds = v.get<double>(); }, kReloadable},
      {"max-n", kServe, kInteger, 128, 1, 128, {},
       "Largest n (choices per prompt) of a request",
       [](const Json& v, Options& o) { o.choices_max = v.get<uint32_t>(); }, kReloadable},
      {"max-answer-bytes", kServe, kInteger, 268435456, 1048576, 1099511627776, {},
       "Memory that an answer with several choices may come to, by an estimate, unless it is "
       "streamed; one choice alone may always fill the context",
       [](const Json& v, Options& o) { o.answer_bytes_max = v.get<uint64_t>(); }, kReloadable},
      {"drain-seconds", kServe, kNumber, 30, 0, 86400, {},
       "How long running requests may go on after SIGTERM before they are cut off",
       [](const Json& v, Options& o) { o.drain_seconds = v.get<double>(); }, kReloadable},
      {"stall-seconds", kServe, kNumber, 30, 1, 86400, {},
       "Longest pass: after a third of it the daemon is not ready, after all of it not alive, and "
       "half of it later it ends itself to be restarted",
       [](const Json& v, Options& o) { o.stall_seconds = v.get<double>(); }, kReloadable},
      {"metrics", kServe, kBoolean, true, 0, 0, {},
       "Whether GET /metrics is served",
       [](const Json& v, Options& o) { o.metrics = v.get<bool>(); }},
      {"ui", kServe, kBoolean, true, 0, 0, {},
       "Whether the page at / (a chat and a live view of the machine) is served",
       [](const Json& v, Options& o) { o.ui = v.get<bool>(); }},
      {"metrics-aliases", kServe, kChoice, "none", 0, 0, {"none", "vllm"},
       "Whose names GET /metrics tells the main metrics in once more, for dashboards and gateways "
       "that know those",
       [](const Json& v, Options& o) { o.metrics_aliases = v.get<std::string>(); }},
      {"kv-events", kServe, kText, "", 0, 0, {},
       "Where changes of the prefix cache are published over ZeroMQ for routers, as vLLM's KV "
       "events: tcp://ADDRESS:PORT (* for all IPv4 addresses, or for a port that is free) or "
       "ipc:///PATH. A client that connects reads all prompts and answers as token ids, and "
       "cache_salts. Empty: nowhere",
       [](const Json& v, Options& o) { o.kv_events = v.get<std::string>(); }},
      {"kv-events-pod", kServe, kText, "", 0, 0, {},
       "This server's name in the topic of KV events, kv@NAME@MODEL, as the router knows it. "
       "Empty: the host's name",
       [](const Json& v, Options& o) { o.kv_events_pod = v.get<std::string>(); }},
      {"log-level", kAll | kSimulate, kChoice, "info", 0, 0,
       {"trace", "debug", "info", "warn", "error", "off"},
       "Least severe messages that go to standard error",
       [](const Json& v, Options& o) { o.log_level = v.get<std::string>(); }, kReloadable},
      {"log-format", kServe, kChoice, "logfmt", 0, 0, {"logfmt", "json", "text"},
       "How the daemon's log is written: key=value, a JSON object per line, or words for people",
       [](const Json& v, Options& o) { o.log_format = v.get<std::string>(); }},
      {"log-prompts", kServe, kBoolean, false, 0, 0, {},
       "Whether the bodies of requests, with all that people write, go to the log",
       [](const Json& v, Options& o) { o.log_prompts = v.get<bool>(); }, kReloadable},
      {"special-tokens-in-messages", kServe, kBoolean, false, 0, 0, {},
       "Whether control tokens that a chat's messages, tools or tool results spell (<|im_end|>) "
       "become these tokens, so that anyone who writes a message can end it and write the next",
       [](const Json& v, Options& o) { o.engine.special_tokens_in_messages = v.get<bool>(); }},
      {"max-head-bytes", kServe, kInteger, 16384, 1024, 1048576, {},
       "Largest head (request line and headers) of an HTTP request",
       [](const Json& v, Options& o) { o.http.limits.head_bytes = v.get<size_t>(); }, kReloadable},
      {"max-head-fields", kServe, kInteger, 64, 8, 1024, {},
       "Most headers of an HTTP request",
       [](const Json& v, Options& o) { o.http.limits.head_fields = v.get<size_t>(); }, kReloadable},
      {"max-target-bytes", kServe, kInteger, 2048, 64, 65536, {},
       "Longest path and query of an HTTP request",
       [](const Json& v, Options& o) { o.http.limits.target_bytes = v.get<size_t>(); },
        kReloadable},
      {"max-body-bytes", kServe, kInteger, 4194304, 1024, 1073741824, {},
       "Largest body of an HTTP request",
       [](const Json& v, Options& o) { o.http.limits.body_bytes = v.get<size_t>(); }, kReloadable},
      {"max-bodies-bytes", kServe, kInteger, 536870912, 1048576, 1099511627776, {},
       "Bytes of the bodies of all HTTP requests together that are read, wait or are being parsed",
       [](const Json& v, Options& o) { o.http.limits.bodies_bytes = v.get<size_t>(); },
        kReloadable},
      {"head-seconds", kServe, kNumber, 10, 0.1, 3600, {},
       "Time a client has to send the head of a request",
       [](const Json& v, Options& o) { o.http.limits.head_deadline = seconds_of(v); }, kReloadable},
      {"body-seconds", kServe, kNumber, 30, 0.1, 3600, {},
       "Time a client has to send the body of a request",
       [](const Json& v, Options& o) { o.http.limits.body_deadline = seconds_of(v); }, kReloadable},
      {"min-body-rate", kServe, kInteger, 65536, 0, 1073741824, {},
       "Bytes per second at which a body must come once --body-grace-seconds are over; 0: any",
       [](const Json& v, Options& o) { o.http.limits.body_bytes_per_second = v.get<size_t>(); },
        kReloadable},
      {"body-grace-seconds", kServe, kNumber, 10, 0, 3600, {},
       "Time for which a body may come more slowly than --min-body-rate",
       [](const Json& v, Options& o) { o.http.limits.body_grace = seconds_of(v); }, kReloadable},
      {"max-json-depth", kServe, kInteger, 64, 8, 512, {},
       "Levels of arrays and objects inside one another in a body",
       [](const Json& v, Options& o) { o.http.limits.nesting = v.get<size_t>(); }, kReloadable},
      {"write-seconds", kServe, kNumber, 10, 0.1, 3600, {},
       "Time after which a client that takes nothing of its answer is cut off",
       [](const Json& v, Options& o) { o.http.limits.write_deadline = seconds_of(v); },
        kReloadable},
      {"min-answer-rate", kServe, kInteger, 65536, 0, 1073741824, {},
       "Bytes per second at which a complete answer must be taken once --write-seconds are over; "
       "0: any",
       [](const Json& v, Options& o) { o.http.limits.answer_bytes_per_second = v.get<size_t>(); },
        kReloadable},
      {"idle-seconds", kServe, kNumber, 15, 0.1, 86400, {},
       "Time after which a connection without a request is closed; behind a proxy: more than it "
       "keeps unused connections",
       [](const Json& v, Options& o) { o.http.limits.idle_deadline = seconds_of(v); }, kReloadable},
      {"max-unsent-bytes", kServe, kInteger, 262144, 4096, 1073741824, {},
       "Bytes of a streamed answer that a client may owe; one that still owes more after "
       "--write-seconds is cut off",
       [](const Json& v, Options& o) { o.http.limits.unsent_bytes = v.get<size_t>(); },
        kReloadable},
      {"max-answers-bytes", kServe, kInteger, 536870912, 1048576, 1099511627776, {},
       "Bytes of the answers to all clients together that are not taken yet; above this the client "
       "that owes most is cut off",
       [](const Json& v, Options& o) { o.http.limits.answers_bytes = v.get<size_t>(); },
        kReloadable},
      {"max-connections", kServe, kInteger, 4096, 1, 1000000, {},
       "Open connections at most; a client above this and the next limit gets health and metrics "
       "alone",
       [](const Json& v, Options& o) { o.http.limits.connections = v.get<size_t>(); }, kReloadable},
      {"max-connections-per-address", kServe, kInteger, 256, 1, 1000000, {},
       "Open connections of one IPv4 address, or of an IPv6 network of 64 bits; behind a proxy all "
       "clients have one address",
       [](const Json& v, Options& o) { o.http.limits.connections_per_address = v.get<size_t>(); },
        kReloadable},
      {"http-threads", kServe, kIntegerOrAuto, "auto", 1, 8192, {},
       "HTTP requests served at once; more wait, health and metrics excepted. A client (a key or a "
       "network where there are none) has at most twice what is left, alone two thirds. Threads "
       "come and go with the requests; auto: as many as the engine takes on, and 64 to refuse what "
       "is too much, for one client alone",
       [](const Json& v, Options& o) { o.http.limits.threads = count_or_automatic(v); },
        kReloadable},
  };
  // clang-format on
  return table;
}

std::unexpected<Error> wrong_value(const OptionRow& row, std::string_view shown,
                                   std::string_view origin) {
  return invalid_input("{}: {:.200} is not {}", origin, shown, describe_range(row));
}

template <typename T>
std::optional<T> number_from(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool in_range(const OptionRow& row, double value) {
  return value >= row.minimum && value <= row.maximum;
}

// Whether the value has the row's type and range; a list of names is a list here.
bool is_allowed(const OptionRow& row, const Json& value) {
  switch (row.type) {
    case OptionType::kText:
      return value.is_string();
    case OptionType::kTextList:
      return value.is_array() && std::ranges::all_of(value, [](const Json& name) {
               return name.is_string() && !name.get_ref<const std::string&>().empty();
             });
    case OptionType::kIntegerOrAuto:
      if (value.is_string()) return value == "auto";
      [[fallthrough]];
    case OptionType::kInteger:
      return value.is_number_integer() && in_range(row, value.get<double>());
    case OptionType::kNumber:
      return value.is_number() && in_range(row, value.get<double>());
    case OptionType::kBooleanOrAuto:
      if (value.is_string()) return value == "auto";
      [[fallthrough]];
    case OptionType::kBoolean:
      return value.is_boolean();
    case OptionType::kChoice:
      return value.is_string() &&
             std::ranges::find(row.choices, value.get_ref<const std::string&>()) !=
                 row.choices.end();
    case OptionType::kShares:
      if (!value.is_string()) return false;
      return value == "even" || value == "auto" ||
             parse_shares(value.get_ref<const std::string&>()).has_value();
  }
  return false;
}

Json typed_value(const OptionRow& row, std::string_view text) {
  switch (row.type) {
    case OptionType::kTextList:
      return split_at_commas(text);
    case OptionType::kInteger:
    case OptionType::kIntegerOrAuto:
      if (const auto number = number_from<int64_t>(text)) return *number;
      break;
    case OptionType::kNumber:
      if (const auto number = number_from<double>(text)) return *number;
      break;
    case OptionType::kBoolean:
    case OptionType::kBooleanOrAuto:
      if (text == "true" || text == "on" || text == "1") return true;
      if (text == "false" || text == "off" || text == "0") return false;
      break;
    case OptionType::kText:
    case OptionType::kChoice:
    case OptionType::kShares:
      break;
  }
  return std::string(text);
}

}  // namespace

std::span<const OptionRow> option_table() {
  return rows();
}

const OptionRow* find_option(std::string_view name) {
  const auto row = std::ranges::find(rows(), name, &OptionRow::name);
  return row == rows().end() ? nullptr : &*row;
}

std::string environment_name(const OptionRow& row) {
  std::string name = "LOCKSTEP_";
  for (const char letter : row.name) {
    name +=
        letter == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return name;
}

std::string describe_range(const OptionRow& row) {
  switch (row.type) {
    case OptionType::kText:
      return "a text";
    case OptionType::kTextList:
      return "a list of names, none of them empty";
    case OptionType::kInteger:
      return fmt::format("an integer from {} to {}", row.minimum, row.maximum);
    case OptionType::kIntegerOrAuto:
      return fmt::format("an integer from {} to {}, or auto", row.minimum, row.maximum);
    case OptionType::kNumber:
      return fmt::format("a number from {} to {}", row.minimum, row.maximum);
    case OptionType::kBoolean:
      return "true or false";
    case OptionType::kBooleanOrAuto:
      return "true, false or auto";
    case OptionType::kChoice:
      return fmt::format("one of {}", fmt::join(row.choices, ", "));
    case OptionType::kShares:
      return "even, auto, or numbers above 0 with colons between, one per rank: 3:1";
  }
  return "";
}

Result<Json> option_from_text(const OptionRow& row, std::string_view text,
                              std::string_view origin) {
  Json value = typed_value(row, text);
  if (!is_allowed(row, value)) return wrong_value(row, fmt::format("\"{}\"", text), origin);
  return value;
}

Result<Json> option_from_json(const OptionRow& row, const Json& value, std::string_view origin) {
  const bool one_name = row.type == OptionType::kTextList && value.is_string();
  Json list = one_name ? Json::array({value}) : value;
  if (!is_allowed(row, list)) return wrong_value(row, to_text(value), origin);
  return list;
}

}  // namespace lockstep
