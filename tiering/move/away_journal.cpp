// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/away_journal.hpp"

#include <climits>
#include <functional>

namespace sluice {
namespace {

constexpr std::size_t kMostRecorded = 65'536;

}  // namespace

Result<void> AwayJournal::name_taken(const std::vector<Copy>& directory, const std::string& name) {
  std::vector<Step> steps;
  for (const Copy& copy : directory) {
    Step step;
    step.kind = Step::Kind::NameTaken;
    step.from = {copy.slot, {}, copy.path, name};
    steps.push_back(std::move(step));
  }
  return record(steps);
}

Result<void> AwayJournal::attributes_change(const std::vector<Copy>& directory, const Place& from,
                                            const Identity& subject) {
  std::vector<Step> steps;
  for (const Copy& copy : directory) {
    Step step;
    step.kind = Step::Kind::MirrorDir;
    step.from = from;
    step.to = {copy.slot, {}, copy.path, {}};
    step.subject = subject;
    steps.push_back(std::move(step));
  }
  return record(steps);
}

Result<void> AwayJournal::record(const std::vector<Step>& steps) {
  std::vector<std::string> records;
  std::vector<std::size_t> hashes;
  for (const Step& step : steps) {
    // A path this long could not be opened when the tier returns.
    if (step.from.path.size() >= PATH_MAX || step.to.path.size() >= PATH_MAX)
      return Error(EIO, "the directory's path is too long to record for a tier that is away");
    // One intent for each copy, because the tiers may return one by one.
    std::string bytes = encode_steps({step});
    const std::size_t hash = std::hash<std::string>{}(bytes);
    MutexLock lock(mutex_);
    if (recorded_.contains(hash)) continue;
    hashes.push_back(hash);
    records.push_back(std::move(bytes));
  }
  if (records.empty()) return {};
  SLUICE_TRY(store_.begin_intents(records));
  MutexLock lock(mutex_);
  if (recorded_.size() >= kMostRecorded) recorded_.clear();
  recorded_.insert(hashes.begin(), hashes.end());
  return {};
}

std::size_t AwayJournal::remembered() const {
  MutexLock lock(mutex_);
  return recorded_.size();
}

void AwayJournal::tier_returned() {
  MutexLock lock(mutex_);
  recorded_.clear();
}

}  // namespace sluice
