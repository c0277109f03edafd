// Conversations in slots and in files: whose they are, and what is not believed.
#include "server/api/common/conversations.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

Conversation some_conversation(size_t tokens = 5) {
  Conversation conversation;
  for (size_t token = 0; token < tokens; ++token) {
    conversation.tokens.push_back(static_cast<TokenId>(token * 7));
  }
  conversation.cache_salt = "salt";
  return conversation;
}

class ConversationsTest : public testing::Test {
 protected:
  Conversations make(const std::string& model = "a model") {
    return Conversations({.directory = folder_ / "", .model = model, .slot_count = 2});
  }

  test::Folder folder_;
};

TEST_F(ConversationsTest, a_slot_has_the_last_one_of_its_owner_that_has_ended) {
  Conversations conversations = make();
  EXPECT_TRUE(conversations.find("alice", 1).tokens.empty());
  conversations.begin("alice", 1);
  EXPECT_EQ(conversations.use("alice", 1).running, 1U);
  EXPECT_EQ(conversations.use("alice", 1).tokens, 0U);
  conversations.end("alice", 1, some_conversation(3));
  EXPECT_EQ(conversations.use("alice", 1).running, 0U);
  EXPECT_EQ(conversations.find("alice", 1).tokens, some_conversation(3).tokens);
  EXPECT_EQ(conversations.use("alice", 0).tokens, 0U);
  EXPECT_EQ(conversations.use("bob", 1).tokens, 0U);
  EXPECT_EQ(conversations.erase("bob", 1), 0U);
  EXPECT_EQ(conversations.erase("alice", 1), 3U);
  EXPECT_EQ(conversations.erase("alice", 1), 0U);
}

TEST_F(ConversationsTest, a_file_is_its_owners_and_its_models) {
  const Conversations conversations = make();
  const auto written = conversations.save("alice", "one.bin", some_conversation());
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
    EXPECT_FALSE(conversations.save("alice", name, some_conversation()).has_value());
    EXPECT_FALSE(conversations.load("alice", name).has_value());
    EXPECT_FALSE(conversations.remove("alice", name).has_value());
  }
  const std::string longest(Conversations::kNameBytesMax, 'a');
  EXPECT_TRUE(conversations.save("../alice/\n", longest, some_conversation()).has_value());
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
    ASSERT_TRUE(conversations.save("alice", fmt::format("{}", file), some_conversation()));
  }
  EXPECT_FALSE(conversations.save("alice", "more", some_conversation()).has_value());
  EXPECT_TRUE(conversations.save("alice", "7", some_conversation(9)).has_value());
  EXPECT_EQ(conversations.load("alice", "7")->conversation.tokens.size(), 9U);
  EXPECT_TRUE(conversations.save("bob", "more", some_conversation()).has_value());
  EXPECT_TRUE(conversations.remove("alice", "3").has_value());
  EXPECT_TRUE(conversations.save("alice", "more", some_conversation()).has_value());
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
