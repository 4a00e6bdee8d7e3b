// SPDX-License-Identifier: BSD-2-Clause
// The control socket with clients that behave badly.
#include "fs/control/control_server.hpp"

#include <sys/socket.h>

#include <future>
#include <nlohmann/json.hpp>

#include "base/unix_socket.hpp"
#include "tests/unit/fs/test_filesystem.hpp"
#include "tiering/heat/heat_tree.hpp"

namespace sluice {
namespace {

class ControlServerTest : public FilesystemTest {
 protected:
  void prepare() override {
    pool_ = open(make_tiers("abc"));
    Filesystem::Settings settings;
    settings.migration.emplace().automatic = false;
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, std::move(settings));
    const auto activity = [this] {
      asked_.set_value();
      return nlohmann::json{{"long", long_}};
    };
    auto server = ControlServer::listen(path_, {*pool_,
                                                store_,
                                                *fs_,
                                                *fs_->migration(),
                                                options_,
                                                lists_,
                                                {},
                                                {},
                                                activity,
                                                heat_tree_,
                                                {},
                                                {}});
    ASSERT_TRUE(server) << server.error().text();
    server_ = *std::move(server);
  }
  UniqueFd ask(const std::string& line) {
    auto socket = connect_unix(path_);
    EXPECT_TRUE(socket);
    EXPECT_GT(::send(socket->get(), line.data(), line.size(), 0), 0);
    return *std::move(socket);
  }

  const std::string path_ = dir_ / "control.sock";
  const std::string long_ = std::string(16 * kMiB, 'x');  // more than any socket buffer holds
  LiveOptions options_{{}, {}, [](const MountOptions&) {}};
  const FileLists lists_{dir_ / "files"};
  HeatTree heat_tree_;
  std::promise<void> asked_;
  std::unique_ptr<ControlServer> server_;
};

TEST_F(ControlServerTest, EndsEvenIfAClientDoesNotReadItsAnswer) {
  UniqueFd client = ask("{\"verb\": \"activity\"}\n");
  asked_.get_future().wait();
  auto ended = std::async(std::launch::async, [&] { server_.reset(); });
  EXPECT_EQ(ended.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  client.reset();
}

TEST_F(ControlServerTest, SilentClientsDoNotBlockOthers) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(*connect_unix(path_));
  const UniqueFd client = ask("{\"verb\": \"dance\"}\n");
  std::string answer(4096, '\0');
  EXPECT_GT(::recv(client.get(), answer.data(), answer.size(), 0), 0);
  EXPECT_NE(answer.find("unknown request"), std::string::npos) << answer;
}

TEST_F(ControlServerTest, AnUnknownVerbGetsAnError) {
  for (const char* line : {"{\"verb\": \"dance\"}\n", "[]\n", "nothing\n"}) {
    const UniqueFd client = ask(line);
    std::string answer(4096, '\0');
    const ssize_t got = ::recv(client.get(), answer.data(), answer.size(), 0);
    ASSERT_GT(got, 0) << line;
    const auto json = nlohmann::json::parse(answer.substr(0, static_cast<std::size_t>(got)));
    EXPECT_TRUE(json.at("done")) << line;
    EXPECT_TRUE(json.contains("error")) << line;
  }
}

}  // namespace
}  // namespace sluice
