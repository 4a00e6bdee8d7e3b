// SPDX-License-Identifier: BSD-2-Clause
#include "tests/unit/tiering/origin_model.hpp"

#include <algorithm>
#include <cerrno>

namespace sluice::test {
namespace {

constexpr std::int64_t kScanTime = 100;  // the file's times are 0: it is quiet, but no flag is old

}  // namespace

// The file as one machine sees it.
class OriginModel::File final : public OriginFile {
 public:
  // A writer only counts the names, so the order of that does not matter.
  enum class Names { Matter, Count };
  File(OriginModel& model, int machine, Names names = Names::Matter)
      : model_(model), machine_(machine), names_(names) {}

  Result<FileStat> stat() const override { return FileStat{.inode = 1, .size = 2}; }
  Result<void> sync() override { return {}; }

  Result<std::string> get(const std::string& name) const override {
    if (!model_.wait_for_turn(machine_)) return Error(EIO, "get");
    const auto found = model_.attributes_.find(name);
    const bool has = found != model_.attributes_.end();
    model_.note(machine_, has ? model_.tags_[found->second] : "-");
    if (!has) return Error(ENODATA, "get");
    return found->second;
  }
  Result<void> set(const std::string& name, const std::string& value) override {
    if (!model_.wait_for_turn(machine_)) return Error(EIO, "set");
    const std::string tag = std::to_string(machine_) + "." +
                            std::to_string(model_.machines_[std::size_t(machine_)].sets++);
    const bool is_mark = value == mark();
    const bool is_left_out =
        name == "v" && model_.left_out_ == (is_mark ? LeftOut::Mark : LeftOut::Stamp);
    model_.tags_[name == "v" ? value : name] = is_mark ? "mark" : tag;
    if (!is_left_out) model_.attributes_[name] = value;
    return {};
  }
  Result<void> remove(const std::string& name) override {
    if (!model_.wait_for_turn(machine_)) return Error(EIO, "remove");
    model_.attributes_.erase(name);
    return {};
  }
  Result<std::vector<std::string>> names() const override {
    if (names_ == Names::Count) return std::vector<std::string>{};
    if (!model_.wait_for_turn(machine_)) return Error(EIO, "names");
    std::vector<std::string> names;
    for (const auto& [name, value] : model_.attributes_) {
      if (model_.left_out_ != LeftOut::Flags || name == "v") names.push_back(name);
    }
    model_.note(machine_, std::to_string(names.size()));
    return names;
  }

 private:
  // v while the file is being written: format 1, and zeros.
  static std::string mark() {
    std::string bytes(40, '\0');
    bytes[0] = 1;
    return bytes;
  }

  OriginModel& model_;
  int machine_;
  Names names_;
};

OriginModel::OriginModel(std::vector<Work> machines, LeftOut left_out)
    : left_out_(left_out), machines_(machines.size()) {
  for (std::size_t i = 0; i < machines.size(); ++i) {
    machines_[i].thread = std::thread([this, i, work = std::move(machines[i])] {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return turn_ == static_cast<int>(i); });
      }
      try {
        work(*this, static_cast<int>(i));
      } catch (const Killed&) {
      }
      const std::lock_guard lock(mutex_);
      machines_[i].over = true;
      turn_ = -1;
      changed_.notify_all();
    });
    // It runs until its first call.
    step(static_cast<int>(i));
  }
}

OriginModel::~OriginModel() {
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    if (!machines_[i].over) step(static_cast<int>(i), Fate::Dies);
    machines_[i].thread.join();
  }
}

bool OriginModel::are_all_over() const {
  return std::ranges::all_of(machines_, [](const Machine& m) { return m.over; });
}

void OriginModel::step(int machine, Fate fate) {
  std::unique_lock lock(mutex_);
  machines_[std::size_t(machine)].fate = fate;
  turn_ = machine;
  changed_.notify_all();
  changed_.wait(lock, [&] { return turn_ == -1; });
  check();
}

// A call begins by giving the turn back, so that a step is one call and what the machine does with
// its result.
bool OriginModel::wait_for_turn(int machine) {
  std::unique_lock lock(mutex_);
  turn_ = -1;
  changed_.notify_all();
  changed_.wait(lock, [&] { return turn_ == machine; });
  const Fate fate = machines_[std::size_t(machine)].fate;
  machines_[std::size_t(machine)].history += fate == Fate::Fails ? "!" : ".";
  if (fate == Fate::Dies) throw Killed();
  return fate == Fate::Runs;
}

void OriginModel::note(int machine, const std::string& result) {
  machines_[std::size_t(machine)].history += result;
}

char OriginModel::half(int machine, std::size_t index) {
  if (!wait_for_turn(machine)) throw Killed();
  note(machine, std::string(1, halves_[index]));
  return halves_[index];
}

void OriginModel::set_half(int machine, std::size_t index) {
  if (!wait_for_turn(machine)) throw Killed();
  halves_[index] = static_cast<char>('A' + machine);
}

void OriginModel::write(OriginModel& model, int machine) {
  File file(model, machine, File::Names::Count);
  const auto flag = begin_writing(file, BootId{1});
  if (!flag) return;
  model.set_half(machine, 0);
  model.set_half(machine, 1);
  static_cast<void>(end_writing(file, *flag));
}

void OriginModel::open_once(int machine, Copy& copy) {
  const File file(*this, machine);
  const auto now = read_version(file);
  if (!now || !now->is_settled()) return;
  if (*now == copy.version) {
    ++hits_;
    return;
  }
  const Copy fetched{*now, {half(machine, 0), half(machine, 1)}};
  const auto still = is_still(file, *now);
  if (!still || !*still) return;
  copy = fetched;
  kept_.push_back(copy);
}

void OriginModel::read_twice(OriginModel& model, int machine) {
  Copy copy;
  model.open_once(machine, copy);
  model.open_once(machine, copy);
}

void OriginModel::scan(OriginModel& model, int machine) {
  File file(model, machine);
  static_cast<void>(stamp_quiet_file(file, kScanTime));
}

// The invariant: if v is the number of a kept copy, the copy has the bytes of the file.
void OriginModel::check() {
  const auto v = attributes_.find("v");
  if (v == attributes_.end()) return;
  std::uint64_t number = 0;
  for (std::size_t i = 16; i-- > 8;)
    number = number << 8 | static_cast<unsigned char>(v->second[i]);
  for (const Copy& copy : kept_) {
    if (copy.version.stamp != number || copy.halves == halves_) continue;
    broken_ = std::string("a copy with ") + copy.halves[0] + copy.halves[1] +
              " is judged to be right, but the file has " + halves_[0] + halves_[1];
  }
}

std::string OriginModel::state() const {
  std::string out{halves_[0], halves_[1]};
  for (const auto& [name, value] : attributes_)
    out += "|" + (name == "v" ? "v" + tags_.at(value) : tags_.at(name));
  for (const Machine& machine : machines_)
    out += "|" + machine.history + (machine.over ? "x" : "") + std::to_string(machine.sets);
  return out;
}

bool OriginModel::is_settled() {
  const auto v = attributes_.find("v");
  const bool has_stamp = v != attributes_.end() && v->second.substr(8, 8) != std::string(8, '\0');
  return has_stamp && attributes_.size() == 1;
}

}  // namespace sluice::test
