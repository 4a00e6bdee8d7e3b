// SPDX-License-Identifier: BSD-2-Clause
#include "tools/web/handler.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "tests/support/temp_dir.hpp"
#include "tools/web/page_files.hpp"

namespace sluice::tools::web {
namespace {

using Json = nlohmann::ordered_json;

class WebHandlerTest : public testing::Test {
 protected:
  HttpResponse ask(const std::string& path, HttpHeaders headers, const std::string& query = "") {
    return handler_.answer({path, query, std::move(headers)});
  }
  HttpResponse ask_api(const std::string& what, const std::string& query = "") {
    return ask("/api/" + what, {{"host", "127.0.0.1:9465"}, {"authorization", "Bearer " + token_}},
               query);
  }
  static std::string code(const HttpResponse& response) { return response.status.substr(0, 3); }
  static std::string error(const HttpResponse& response) {
    return Json::parse(response.body).at("error");
  }

  test::TempDir dir_;  // used as the mount point, but not mounted
  const std::string token_ = make_token();
  WebHandler handler_{dir_.path(), token_};
};

TEST_F(WebHandlerTest, TokensAreLongAndUnique) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(make_token());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(token_.size(), 32u);
  EXPECT_EQ(token_.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST_F(WebHandlerTest, PageNeedsNoTokenAndHasAStrictPolicy) {
  ASSERT_GT(web_files().size(), 3u);
  for (const WebFile& file : web_files()) {
    const HttpResponse page = ask(std::string(file.path), {{"host", "localhost:1"}});
    EXPECT_EQ(code(page), "200") << file.path;
    EXPECT_EQ(page.body, file.content);
    std::string all;
    for (const auto& [name, value] : page.headers) all += name + ": " + value + "\n";
    for (const char* needed :
         {"default-src 'none'", "frame-ancestors 'none'", "X-Content-Type-Options: nosniff",
          "Cache-Control: no-store", "Referrer-Policy: no-referrer"})
      EXPECT_NE(all.find(needed), std::string::npos) << needed;
    EXPECT_EQ(all.find("unsafe"), std::string::npos);
  }
  EXPECT_EQ(code(ask("/none.js", {{"host", "localhost"}})), "404");
}

TEST_F(WebHandlerTest, ApiNeedsTheToken) {
  const auto with = [&](HttpHeaders headers) {
    headers.emplace_back("host", "127.0.0.1:9465");
    return ask("/api/activity", std::move(headers));
  };
  EXPECT_EQ(code(with({{"authorization", "Bearer " + token_}})), "503");  // not mounted
  std::string other = token_;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& wrong :
       {std::string("Bearer "), "Bearer " + other, "Bearer " + token_.substr(1),
        "Bearer " + token_ + "0", token_, "Basic " + token_}) {
    EXPECT_EQ(code(with({{"authorization", wrong}})), "401") << wrong;
  }
  EXPECT_NE(error(with({})).find("address that 'sluice web' printed"), std::string::npos);
  // Not accepted in the address, because addresses appear in logs.
  EXPECT_EQ(code(ask("/api/activity", {{"host", "localhost"}}, "token=" + token_)), "401");
}

TEST_F(WebHandlerTest, OnlyLoopbackHostsAreAccepted) {
  const auto by = [&](const std::string& host) { return code(ask("/", {{"host", host}})); };
  for (const char* good : {"127.0.0.1:9465", "127.1.2.3", "localhost:80", "[::1]:9465", "[::1]"})
    EXPECT_EQ(by(good), "200") << good;
  for (const char* bad : {"", "evil.example", "evil.example:9465", "127.0.0.1.evil.example",
                          "localhost:9465:evil", "192.168.1.1:9465", "127.0.0.1:evil", "::1"})
    EXPECT_EQ(by(bad), "403") << bad;
  EXPECT_EQ(code(ask("/", {})), "403");
}

TEST_F(WebHandlerTest, OtherOriginsAreRefused) {
  const auto from = [&](const std::string& origin) {
    return code(ask(
        "/api/activity",
        {{"host", "localhost:9465"}, {"origin", origin}, {"authorization", "Bearer " + token_}}));
  };
  EXPECT_EQ(from("http://localhost:9465"), "503");  // not mounted
  for (const char* bad : {"http://localhost:9466", "https://localhost:9465", "http://evil.example",
                          "null", "http://127.0.0.1:9465"})
    EXPECT_EQ(from(bad), "403") << bad;
}

TEST_F(WebHandlerTest, MissingMountIsReported) {
  for (const char* what : {"activity", "moves", "prices"}) {
    EXPECT_EQ(code(ask_api(what)), "503") << what;
    EXPECT_NE(error(ask_api(what)).find(dir_.path()), std::string::npos);
  }
  EXPECT_EQ(code(ask_api("explain", "path=/a")), "503");
  EXPECT_EQ(code(ask_api("tree", "path=/a")), "503");
}

TEST_F(WebHandlerTest, PathMustBeValid) {
  for (const char* what : {"tree", "explain"}) {
    for (const char* query : {"", "path", "path=%", "path=/a%00b", "other=/a"})
      EXPECT_EQ(code(ask_api(what, query)), "400") << what << "?" << query;
  }
  EXPECT_EQ(code(ask_api("none")), "404");
}

}  // namespace
}  // namespace sluice::tools::web
