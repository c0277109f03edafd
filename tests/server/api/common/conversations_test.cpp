// Conversations in slots and in files: whose they are, and what is not believed.
#include "server/api/common/conversations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

Conversation some_conversation(size_t tokens = 5) {
  Conversation conversation;
  for (size_t token = 0; token < tokens; ++token) {
    conversation.tokens.push_back(static_cast<TokenId>(token * 7));
  }
  conversation.cache_salt = "salt";
  return conversation;
}

Result<uint64_t> save(const Conversations& conversations, const std::string& owner,
                      std::string_view name, const Conversation& conversation) {
  const auto place = conversations.take_save_place();
  if (!place) return std::unexpected(place.error());
  return conversations.save(*place, owner, name, conversation);
}

// A request that ends with a conversation of so many tokens.
void answer(Conversations& conversations, const std::string& owner, uint32_t slot, size_t tokens) {
  conversations.begin(owner, slot);
  Conversation conversation = some_conversation(tokens);
  conversations.end(owner, slot, &conversation);
}

class ConversationsTest : public testing::Test {
 protected:
  Conversations make(const std::string& model = "a model") {
    return Conversations({.directory = folder_ / "", .model = model, .slot_count = 2});
  }

  // The folder of the one owner that has one.
  std::filesystem::path only_owner() const {
    return std::filesystem::directory_iterator(folder_ / "slots")->path();
  }

  test::Folder folder_;
};

TEST_F(ConversationsTest, a_slot_has_the_last_one_of_its_owner_that_has_ended) {
  Conversations conversations = make();
  EXPECT_TRUE(conversations.find("alice", 1).tokens.empty());
  conversations.begin("alice", 1);
  EXPECT_EQ(conversations.use("alice", 1).running, 1U);
  EXPECT_EQ(conversations.use("alice", 1).tokens, 0U);
  Conversation ended = some_conversation(3);
  conversations.end("alice", 1, &ended);
  EXPECT_EQ(conversations.use("alice", 1).running, 0U);
  EXPECT_EQ(conversations.find("alice", 1).tokens, some_conversation(3).tokens);
  EXPECT_EQ(conversations.use("alice", 0).tokens, 0U);
  EXPECT_EQ(conversations.use("bob", 1).tokens, 0U);
  EXPECT_EQ(conversations.erase("bob", 1), 0U);
  EXPECT_EQ(conversations.erase("alice", 1), 3U);
  EXPECT_EQ(conversations.erase("alice", 1), 0U);
}

TEST_F(ConversationsTest, a_slot_keeps_what_it_has_where_a_request_fails) {
  Conversations conversations = make();
  answer(conversations, "alice", 0, 3);
  conversations.begin("alice", 0);
  conversations.end("alice", 0, nullptr);
  EXPECT_EQ(conversations.use("alice", 0).tokens, 3U);
  EXPECT_EQ(conversations.use("alice", 0).running, 0U);
}

TEST_F(ConversationsTest, slots_without_conversation_or_request_take_no_memory) {
  Conversations conversations = make();
  conversations.begin("alice", 0);
  conversations.end("alice", 0, nullptr);
  EXPECT_EQ(conversations.used_slots(), 0U);
  answer(conversations, "alice", 0, 3);
  conversations.begin("alice", 0);
  EXPECT_EQ(conversations.erase("alice", 0), 3U);
  EXPECT_EQ(conversations.use("alice", 0).running, 1U);
  conversations.end("alice", 0, nullptr);
  EXPECT_EQ(conversations.used_slots(), 0U);
}

TEST_F(ConversationsTest, the_conversations_of_an_owner_that_ended_first_make_way) {
  Conversations conversations({.slot_count = 4, .owner_tokens_most = 10});
  answer(conversations, "bob", 0, 10);
  answer(conversations, "alice", 0, 4);
  answer(conversations, "alice", 1, 3);
  answer(conversations, "alice", 2, 3);
  answer(conversations, "alice", 0, 3);  // 1's ended first now
  conversations.begin("alice", 1);
  answer(conversations, "alice", 3, 4);
  const auto tokens = [&](uint32_t slot) { return conversations.use("alice", slot).tokens; };
  EXPECT_EQ(tokens(0), 3U);
  EXPECT_EQ(tokens(1), 0U);
  EXPECT_EQ(conversations.use("alice", 1).running, 1U);
  EXPECT_EQ(tokens(2), 3U);
  EXPECT_EQ(tokens(3), 4U);
  EXPECT_EQ(conversations.use("bob", 0).tokens, 10U);
  answer(conversations, "alice", 3, 10);
  EXPECT_EQ(tokens(0) + tokens(2), 0U);
  EXPECT_EQ(tokens(3), 10U);
  answer(conversations, "alice", 2, 11);  // more than there may be
  EXPECT_EQ(tokens(2) + tokens(3), 0U);
  EXPECT_EQ(conversations.used_slots(), 2U);  // bob's, and the one that runs
}

TEST_F(ConversationsTest, the_conversations_of_all_owners_that_ended_first_make_way) {
  Conversations conversations({.slot_count = 2, .owner_tokens_most = 6, .tokens_most = 10});
  answer(conversations, "alice", 0, 4);
  answer(conversations, "bob", 0, 3);
  answer(conversations, "carol", 0, 3);
  EXPECT_EQ(conversations.use("alice", 0).tokens, 4U);
  answer(conversations, "bob", 1, 2);
  EXPECT_EQ(conversations.use("alice", 0).tokens, 0U);
  EXPECT_EQ(conversations.use("bob", 0).tokens, 3U);
  answer(conversations, "dave", 0, 5);
  EXPECT_EQ(conversations.use("bob", 0).tokens, 0U);
  EXPECT_EQ(conversations.use("carol", 0).tokens, 3U);
  EXPECT_EQ(conversations.use("bob", 1).tokens, 2U);
  EXPECT_EQ(conversations.use("dave", 0).tokens, 5U);
  EXPECT_EQ(conversations.erase("dave", 0), 5U);
  answer(conversations, "erin", 0, 5);  // what was erased counts no longer
  EXPECT_EQ(conversations.used_slots(), 3U);
}

TEST_F(ConversationsTest, so_many_saves_go_on_at_once_and_no_more) {
  const Conversations conversations = make();
  {
    const auto first = conversations.take_save_place();
    const auto second = conversations.take_save_place();
    ASSERT_TRUE(first && second);
    const auto third = conversations.take_save_place();
    ASSERT_FALSE(third);
    EXPECT_EQ(third.error().kind, ErrorKind::kUnavailable);
    EXPECT_EQ(third.error().retry_after_seconds, 1);
  }
  const auto first = conversations.take_save_place();
  EXPECT_TRUE(first && conversations.take_save_place());
}

TEST_F(ConversationsTest, what_is_wrong_with_a_file_is_said) {
  const Conversations conversations = make();
  const auto message = [&](const std::string& name) {
    const auto loaded = conversations.load("alice", name);
    return loaded ? "" : loaded.error().message;
  };
  EXPECT_EQ(message("a"), "there is no saved conversation \"a\"");
  ASSERT_TRUE(save(conversations, "alice", "a", some_conversation()));
  const std::filesystem::path own = only_owner();
  std::filesystem::create_symlink(own / "a", own / "link");
  EXPECT_EQ(message("link"), "there is no saved conversation \"link\"");
  std::filesystem::create_directory(own / "folder");
  EXPECT_THAT(message("folder"), HasSubstr("\"folder\" is no file"));
  std::filesystem::resize_file(own / "a", 20);
  EXPECT_EQ(message("a"), "the saved conversation \"a\" is damaged");
  ASSERT_TRUE(save(make("another model"), "alice", "b", some_conversation()));
  EXPECT_EQ(message("b"),
            "the saved conversation \"b\" is of the model \"another model\", not of "
            "\"a model\"");
}

TEST_F(ConversationsTest, what_the_machine_refuses_is_no_fault_of_the_client) {
  const Conversations conversations = make();
  ASSERT_TRUE(save(conversations, "alice", "a", some_conversation()));
  const std::filesystem::path own = only_owner();
  std::filesystem::remove_all(own);
  std::ofstream(own) << "no folder";
  const auto loaded = conversations.load("alice", "a");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(loaded.error().message, HasSubstr("\"a\" cannot be read: Not a directory"));
  const auto saved = save(conversations, "alice", "a", some_conversation());
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().kind, ErrorKind::kMachineRefused);
}

TEST_F(ConversationsTest, what_a_killed_process_has_left_is_removed) {
  const Conversations conversations = make();
  ASSERT_TRUE(save(conversations, "alice", "a", some_conversation()));
  const std::filesystem::path own = only_owner();
  std::ofstream(own / ".new-7") << "half of a file";
  ASSERT_TRUE(save(conversations, "alice", "b", some_conversation()));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(own)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, UnorderedElementsAre("a", "b"));
}

TEST_F(ConversationsTest, a_file_is_its_owners_and_its_models) {
  const Conversations conversations = make();
  const auto written = save(conversations, "alice", "one.bin", some_conversation());
  ASSERT_TRUE(written.has_value()) << written.error().message;
  const auto loaded = make().load("alice", "one.bin");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ(loaded->bytes, *written);
  EXPECT_EQ(loaded->conversation.tokens, some_conversation().tokens);
  EXPECT_EQ(loaded->conversation.cache_salt, "salt");
  EXPECT_FALSE(conversations.load("bob", "one.bin").has_value());
  EXPECT_FALSE(make("another model").load("alice", "one.bin").has_value());
  EXPECT_TRUE(conversations.remove("bob", "one.bin").has_value());
  EXPECT_TRUE(conversations.load("alice", "one.bin").has_value());
  EXPECT_TRUE(conversations.remove("alice", "one.bin").has_value());
  EXPECT_FALSE(conversations.load("alice", "one.bin").has_value());
}

TEST_F(ConversationsTest, a_name_never_leads_out_of_the_owners_folder) {
  const Conversations conversations = make();
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../x"), std::string("/x"),
        std::string("a/b"), std::string(".hidden"), std::string("a\\b"), std::string("a b"),
        std::string("a\0b", 3), std::string("\xc3\xa4"),
        std::string(Conversations::kNameBytesMax + 1, 'a')}) {
    SCOPED_TRACE(name);
    EXPECT_FALSE(save(conversations, "alice", name, some_conversation()).has_value());
    EXPECT_FALSE(conversations.load("alice", name).has_value());
    EXPECT_FALSE(conversations.remove("alice", name).has_value());
  }
  const std::string longest(Conversations::kNameBytesMax, 'a');
  EXPECT_TRUE(save(conversations, "../alice/\n", longest, some_conversation()).has_value());
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "")) {
    EXPECT_EQ(entry.path().filename(), "slots");
    ++entries;
  }
  EXPECT_EQ(entries, 1U);
}

TEST_F(ConversationsTest, an_owner_has_so_many_files_at_most) {
  const Conversations conversations = make();
  for (size_t file = 0; file < Conversations::kFilesMost; ++file) {
    ASSERT_TRUE(save(conversations, "alice", fmt::format("{}", file), some_conversation()));
  }
  const auto more = save(conversations, "alice", "more", some_conversation());
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message, HasSubstr("there may be 256"));
  EXPECT_TRUE(save(conversations, "alice", "7", some_conversation(9)).has_value());
  EXPECT_EQ(conversations.load("alice", "7")->conversation.tokens.size(), 9U);
  EXPECT_TRUE(save(conversations, "bob", "more", some_conversation()).has_value());
  EXPECT_TRUE(conversations.remove("alice", "3").has_value());
  EXPECT_TRUE(save(conversations, "alice", "more", some_conversation()).has_value());
}

TEST(ConversationBytes, are_believed_as_a_whole_or_not_at_all) {
  const std::string bytes = conversation_bytes(some_conversation(), "a model");
  ASSERT_TRUE(parse_conversation(bytes, "a model").has_value());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(parse_conversation(bytes.substr(0, length), "a model").has_value()) << length;
  }
  EXPECT_FALSE(parse_conversation(bytes + "x", "a model").has_value());
  for (size_t place = 0; place < bytes.size(); ++place) {
    std::string changed = bytes;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    EXPECT_FALSE(parse_conversation(changed, "a model").has_value()) << place;
  }
}

}  // namespace
}  // namespace lockstep
