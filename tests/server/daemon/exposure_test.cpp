// Which listeners the log warns of.
#include "server/daemon/exposure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Exposure, loopback_and_unix_sockets_are_open_to_nobody_else) {
  for (const char* address : {"http://127.0.0.1:8080", "http://127.8.0.1:8080", "http://[::1]:8080",
                              "http://[::ffff:127.0.0.1]:80", "unix:/run/lockstep.sock"}) {
    EXPECT_THAT(exposure_warnings({address}, false), IsEmpty()) << address;
    EXPECT_THAT(probe_exposure_notes({address}, false), IsEmpty()) << address;
  }
}

TEST(Exposure, each_open_listener_is_named_with_the_options_that_close_it) {
  const auto no_key = [](const char* address) {
    return AllOf(HasSubstr(address), HasSubstr("without a key"), HasSubstr("--api-keys"));
  };
  const auto no_tls = [](const char* address) {
    return AllOf(HasSubstr(address), HasSubstr("no TLS"), HasSubstr("--tls-certificate"));
  };
  for (const char* address : {"http://0.0.0.0:8080", "http://[::]:80", "http://192.0.2.1:8080",
                              "http://[2001:db8::1]:8080", "http://[fe80::127.0.0.1]:8080"}) {
    EXPECT_THAT(exposure_warnings({address}, false), ElementsAre(no_key(address), no_tls(address)));
    EXPECT_THAT(exposure_warnings({address}, true), ElementsAre(no_tls(address)));
  }
  EXPECT_THAT(exposure_warnings({"https://0.0.0.0:8443"}, true), IsEmpty());
  EXPECT_THAT(exposure_warnings({"https://0.0.0.0:8443"}, false),
              ElementsAre(no_key("https://0.0.0.0:8443")));
  EXPECT_THAT(exposure_warnings({"unix:/s", "http://0.0.0.0:1", "http://[::1]:1"}, true),
              ElementsAre(no_tls("http://0.0.0.0:1")));
}

TEST(Exposure, the_listener_for_probes_is_said_to_be_open) {
  EXPECT_THAT(probe_exposure_notes({"http://0.0.0.0:9090"}, false),
              ElementsAre(AllOf(HasSubstr("--probe-host"), HasSubstr("metrics without a key"),
                                HasSubstr("without TLS"))));
  EXPECT_THAT(probe_exposure_notes({"https://0.0.0.0:9090"}, true),
              ElementsAre(AllOf(HasSubstr("tells health without a key to"))));
}

TEST(Exposure, a_publisher_of_events_is_said_to_be_open_where_it_is) {
  for (const char* endpoint : {"tcp://127.0.0.1:5557", "tcp://[::1]:5557", "ipc:///run/kv"}) {
    EXPECT_THAT(event_exposure_warnings(endpoint), IsEmpty()) << endpoint;
  }
  for (const char* endpoint : {"tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://192.0.2.1:5557"}) {
    EXPECT_THAT(event_exposure_warnings(endpoint),
                ElementsAre(AllOf(HasSubstr(endpoint), HasSubstr("--kv-events"))));
  }
}

}  // namespace
}  // namespace lockstep
