// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/redaction.hpp"

#include <gtest/gtest.h>

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

class RedactorTest : public testing::Test {
 protected:
  const Redactor redactor_{{1, 2}, {{"/mnt/pool", "/data/sluice"}, {"nvme", "hdd"}}};

  // Whether a line of the log, redacted, does not contain SECRET, the name of a file.
  void expect_hidden(const std::string& line) const {
    const std::string out = redactor_.log_line(line);
    EXPECT_EQ(out.find("SECRET"), std::string::npos) << out;
  }
};

TEST_F(RedactorTest, SipHashMatchesTheTestVectorOfThePaper) {
  // Appendix A of "SipHash: a fast short-input PRF".
  std::string text;
  for (char c = 0; c < 15; ++c) text += c;
  EXPECT_EQ(sip_hash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, text), 0xa129ca6149be45e5u);
}

TEST_F(RedactorTest, SameNameHasTheSameHashOnlyWithTheSameKey) {
  EXPECT_EQ(redactor_.path("/a/b"), redactor_.path("/a/b"));
  EXPECT_NE(redactor_.path("/a"), redactor_.path("/b"));
  EXPECT_NE(redactor_.path("/a"), Redactor({3, 4}, {}).path("/a"));
  // A directory has the same hash in all paths.
  const std::string one = redactor_.path("/dir/x"), other = redactor_.path("/dir/y");
  EXPECT_EQ(one.substr(0, one.rfind('/')), other.substr(0, other.rfind('/')));
}

TEST_F(RedactorTest, CommonExtensionsAreKept) {
  EXPECT_TRUE(redactor_.path("/m/SECRET.gguf").ends_with(">.gguf"));
  EXPECT_TRUE(redactor_.path("/m/x.SECRET").ends_with(">"));
  EXPECT_EQ(redactor_.path("/mnt/pool"), "/mnt/pool");
  EXPECT_TRUE(redactor_.path("/data/sluice/SECRET").starts_with("/data/sluice/<"));
}

TEST_F(RedactorTest, PathsInTheLogAreRedacted) {
  const std::string line =
      "2026-11-15 06:07:28.123 info can't move now: path=/SECRET dir/SECRET.bin from=nvme to=hdd "
      "why=lease: Resource temporarily unavailable";
  const std::string out = redactor_.log_line(line);
  expect_hidden(line);
  EXPECT_NE(out.find("path=" + redactor_.path("/SECRET dir/SECRET.bin") +
                     " from=nvme to=hdd why=lease: Resource"),
            std::string::npos)
      << out;
  EXPECT_EQ(redactor_.log_line("info mounted: mountpoint=/mnt/pool protocol=7.45"),
            "info mounted: mountpoint=/mnt/pool protocol=7.45");
}

TEST_F(RedactorTest, NamesThatLookLikeKeysAreRedacted) {
  expect_hidden(
      "info can't move now: path=/a from=nvme to=hdd why=SECRET from=nvme to=hdd why=busy");
  expect_hidden("warn cannot spill a file: path=/SECRET to=hdd x to=hdd step=copy why=no space");
  expect_hidden("error cannot finish a move, will be retried every second: path=/SECRET why=x");
  expect_hidden("error cannot undo a rename, run 'sluice fsck': name=SECRET name=SECRET why=busy");
  expect_hidden("error two different files have the same name, both are kept: name=a why=SECRET");
  expect_hidden("error cannot finish a move, will be retried every second: path=/a why=SECRET");
  const std::string offline = "error tier is offline: tier=hdd path=/data/sluice why=I/O error";
  EXPECT_EQ(redactor_.log_line(offline), offline);
}

TEST_F(RedactorTest, PathBelowARootIsRedactedAnywhereInAText) {
  expect_hidden("error libfuse: can't open /data/sluice/SECRET file (SECRET)");
  expect_hidden("critical what(): '/mnt/pool/x' and '/data/sluice/SECRET'");
  EXPECT_EQ(redactor_.text("/data/sluice/.sluice/tier.json: Permission denied"),
            "/data/sluice/.sluice/tier.json: Permission denied");
}

TEST_F(RedactorTest, RedactedJsonLogIsValidJson) {
  const std::string out = redactor_.log_line(
      R"({"time":"t","level":"info","message":"moved: path=/SECRET from=nvme to=hdd bytes=7"})");
  EXPECT_EQ(out.find("SECRET"), std::string::npos) << out;
  EXPECT_TRUE(Json::parse(out).at("message").get<std::string>().ends_with(" to=hdd bytes=7"));
}

TEST_F(RedactorTest, ReceiptsLoseNamesAndChecksums) {
  const Json out = redactor_.json(
      {{"receipts", {{{"path", "/SECRET"}, {"hash", "abcd"}, {"bytes", 7}, {"from", "nvme"}}}},
       {"tiers", {{{"path", "/data/sluice"}}}}});
  EXPECT_EQ(out.dump().find("SECRET"), std::string::npos);
  EXPECT_TRUE(out.at("receipts")[0].at("hash").is_null());
  EXPECT_EQ(out.at("receipts")[0].at("bytes"), 7);
  EXPECT_EQ(out.at("tiers")[0].at("path"), "/data/sluice");
}

TEST_F(RedactorTest, ReasonsLoseThePatternsOfRules) {
  const Json out = redactor_.json({{"reason", "rule *.SECRET"}, {"why", "rule /SECRET/**, hot"}});
  EXPECT_EQ(out.dump().find("SECRET"), std::string::npos) << out;
  EXPECT_TRUE(out.at("reason").get<std::string>().starts_with("rule <"));
  EXPECT_EQ(redactor_.json({{"reason", "hot enough"}}).at("reason"), "hot enough");
}

TEST_F(RedactorTest, MountLinesLoseDirectoriesServersAndUsers) {
  const std::string tier = "30 22 8:1 / /data rw,noatime shared:1 - ext4 /dev/sda1 rw,data=ordered";
  EXPECT_EQ(redactor_.mount_line(tier), tier);
  for (const char* line :
       {"43 22 0:50 /SECRET\\040dir /srv rw - fuse.sluice /etc/sluice/p.toml rw,user_id=0",
        "44 22 0:51 / /net rw - nfs4 SECRET:/SECRET rw,addr=SECRET",
        "45 22 0:52 / /smb rw - cifs //SECRET/x rw,username=SECRET", "nonsense SECRET"}) {
    const std::string out = redactor_.mount_line(line);
    EXPECT_EQ(out.find("SECRET"), std::string::npos) << out;
  }
}

TEST_F(RedactorTest, ConfigLosesCommentsPatternsAndUnknownLines) {
  const std::string out = redactor_.config(
      "# SECRET\nmountpoint = \"/mnt/pool\"   # SECRET\nlog_file = \"/a#b\"\npassword = "
      "\"SECRET\"\n"
      "rule = [{match = \"SECRET\", tier = \"hdd\"}]\n"
      "[[tier]]\nname = \"nvme\"\npath = \"/data/sluice\"\n"
      "[[rule]]\n match = \"/SECRET/**\" # SECRET\ntier = \"hdd\"\nlarger = '1GiB'\n");
  EXPECT_EQ(out.find("SECRET"), std::string::npos) << out;
  for (const char* kept : {"mountpoint = \"/mnt/pool\"\n", "log_file = \"/a#b\"\n", "[[tier]]\n",
                           "path = \"/data/sluice\"\n", "match = \"<", "larger = '1GiB'\n"}) {
    EXPECT_NE(out.find(kept), std::string::npos) << kept << "\n" << out;
  }
}

}  // namespace
}  // namespace sluice::tools::cli
