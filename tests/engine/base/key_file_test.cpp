#include "engine/base/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

TEST(KeyFile, what_others_may_write_is_refused_with_a_remedy_that_works) {
  const test::Folder folder;
  const std::string path = folder / "keys";
  std::ofstream(path) << "key";
  for (const mode_t mode : {0600U, 0400U, 0640U, 0644U, 0444U}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(check_key_file(path, "--keys").has_value()) << mode;
  }
  for (const mode_t mode : {0660U, 0602U, 0666U, 0620U, 0777U}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const auto refused = check_key_file(path, "--keys");
    ASSERT_FALSE(refused.has_value()) << mode;
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidInput);
    EXPECT_NE(refused.error().message.find("chmod go-w " + path), std::string::npos);
    ASSERT_EQ(chmod(path.c_str(), mode & ~022U), 0);  // what the remedy does
    EXPECT_TRUE(check_key_file(path, "--keys").has_value()) << mode;
  }
}

TEST(KeyFile, what_is_not_there_or_no_file_is_refused) {
  for (const char* path : {"/nowhere/at/all", "/tmp", "/dev/null"}) {
    EXPECT_FALSE(check_key_file(path, "--keys").has_value()) << path;
  }
}

}  // namespace
}  // namespace lockstep
