// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/load.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

using std::chrono::steady_clock;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text, '\0');  // an istreambuf_iterator throws if the process has ended
  return text;
}

// Where the threads of the process and of its descendants wait.
std::string where_it_waits(const std::string& pid) {
  std::string out;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task", ignored)) {
    const std::string at = task.path().string();
    out += "  " + task.path().filename().string() + " " + text_of(at + "/comm") + "    wchan " +
           text_of(at + "/wchan") + "\n" + text_of(at + "/stack");
    std::istringstream children(text_of(at + "/children"));
    for (std::string child; children >> child;) out += where_it_waits(child);
  }
  return out;
}

std::string waiting_requests() {
  std::string out;
  std::error_code ignored;
  for (const auto& each :
       std::filesystem::directory_iterator("/sys/fs/fuse/connections", ignored)) {
    out += "  " + each.path().string() + "/waiting: " + text_of(each.path().string() + "/waiting");
  }
  return out;
}

[[noreturn]] void run(const std::function<void(Load&)>& work, Load& load, LoadReport& report) {
  std::string problem;
  try {
    work(load);
  } catch (const std::exception& error) {
    problem = error.what();
    if (problem.empty()) problem = "unknown";
  }
  problem.copy(report.problem.data(), report.problem.size() - 1);
  report.ended = problem.empty();
  ::_exit(0);
}

}  // namespace

long Load::check(long result, const std::string& what) {
  if (result < 0) throw std::runtime_error(what + " = " + errno_name(errno));
  return result;
}

void Load::expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

LoadGroup::~LoadGroup() {
  for (const Member& member : members_) ::kill(-member.pid, SIGKILL);
  for (const Member& member : members_) ::waitpid(member.pid, nullptr, 0);
}

void LoadGroup::add(const std::string& name, const std::function<void(Load&)>& work) {
  Member member{name, 0, std::make_unique<Shared<LoadReport>>(), 0, steady_clock::now()};
  const std::string directory = root_ + "/" + name;
  if (::mkdir(directory.c_str(), 0755) < 0) fail("mkdir " + directory);
  std::fflush(nullptr);
  member.pid = ::fork();
  if (member.pid < 0) fail("fork");
  if (member.pid == 0) {
    ::setpgid(0, 0);  // so that its own children can be killed with it
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Load load(directory, seed_ * 1000 + members_.size(), **member.report);
    run(work, load, **member.report);
  }
  ::setpgid(member.pid, member.pid);
  members_.push_back(std::move(member));
}

std::string LoadGroup::problem_of(Member& member, std::chrono::seconds longest) {
  LoadReport& report = **member.report;
  if (report.problem[0] != '\0') return member.name + ": " + report.problem.data();
  if (report.ended) return "";
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(member.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid != 0 && !report.ended && report.problem[0] == '\0') {
    return member.name + ": its process died, status " + std::to_string(info.si_status);
  }
  const auto now = steady_clock::now();
  if (member.last_steps != report.steps) {
    member.last_steps = report.steps;
    member.last_progress = now;
  }
  if (now - member.last_progress < longest) return "";
  return member.name + ": no progress for " + std::to_string(longest.count()) + " s\n" +
         where_it_waits(std::to_string(member.pid)) + waiting_requests();
}

bool LoadGroup::is_held_up() const {
  const auto before = steady_clock::now() - std::chrono::seconds(2);
  return std::ranges::any_of(members_,
                             [&](const Member& each) { return each.last_progress < before; });
}

std::string LoadGroup::problem(std::chrono::seconds longest) {
  std::string out;
  for (Member& member : members_) {
    const std::string one = problem_of(member, longest);
    if (!one.empty()) out += one + "\n";
  }
  return out;
}

std::string LoadGroup::stop() {
  for (const Member& member : members_) (*member.report)->stop = true;
  for (;;) {
    const std::string found = problem(std::chrono::seconds(60));
    const bool all = std::all_of(members_.begin(), members_.end(), [](const Member& member) {
      return (*member.report)->ended.load();
    });
    if (all || !found.empty()) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string LoadGroup::progress() const {
  std::string out;
  for (const Member& member : members_) {
    out += (out.empty() ? "" : ", ") + member.name + " " +
           std::to_string((*member.report)->steps.load());
  }
  return out;
}

std::uint64_t LoadGroup::least_steps() const {
  std::uint64_t least = ~std::uint64_t{0};
  for (const Member& member : members_) {
    least = std::min(least, (*member.report)->steps.load());
  }
  return least;
}

}  // namespace sluice::test
