// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/filesystem.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"

namespace sluice {
namespace {

constexpr unsigned kTicksPerFlush = 5;

std::vector<Rule> rules_of(const std::optional<Migration::Settings>& settings) {
  return settings ? settings->policy.rules : std::vector<Rule>{};
}

}  // namespace

// The census also updates the list of hottest files and the statistics of file sizes.
Migration::Settings Filesystem::with_census(Migration::Settings settings) {
  settings.census_taken = [this, others = std::move(settings.census_taken)](const Census& census,
                                                                            std::int64_t time) {
    accesses_.hot_files().take(census, time);
    for (const FileFacts& file : census.files()) pool_.note_file_size(file.bytes);
    if (lists_ != nullptr) lists_->take(census, time);
    if (others) others(census, time);
  };
  return settings;
}

AccessTracker::Settings Filesystem::with_budgets(AccessTracker::Settings settings) {
  settings.accessed = [this](InodeId file, double uses) { budgets_.accessed(file, uses); };
  return settings;
}

Filesystem::Filesystem(Pool& pool, Store& store, KernelSide& kernel, Settings settings,
                       Engine* engine, const Clock& clock)
    : pool_(pool),
      kernel_(kernel),
      lists_(settings.lists),
      table_(pool, settings.handover),
      times_(pool, store),
      tree_(pool, table_, times_, names_lock_),
      away_(pool, store, tree_),
      engine_(engine),
      descriptors_(pool, tree_, kernel),
      pages_(pool, kernel, descriptors_),
      budgets_({.store = store,
                .table = table_,
                .tree = tree_,
                .descriptors = descriptors_,
                .clock = clock,
                .rest = settings.budget_rest},
               std::move(settings.budgets)),
      accesses_(store, table_, tree_, clock, with_budgets(std::move(settings.accesses))),
      relocator_({.pool = pool,
                  .store = store,
                  .kernel = kernel,
                  .table = table_,
                  .names_lock = names_lock_,
                  .tree = tree_,
                  .descriptors = descriptors_,
                  .times = times_,
                  .engine = engine_,
                  .clock = clock,
                  .file_is_free = [this](InodeId id) { file_is_free(id); }}),
      pins_(pool, table_, tree_, descriptors_, names_lock_, rules_of(settings.migration)),
      attributes_({.pool = pool,
                   .store = store,
                   .kernel = kernel,
                   .names_lock = names_lock_,
                   .tree = tree_,
                   .descriptors = descriptors_,
                   .times = times_,
                   .pages = pages_,
                   .away = away_,
                   .budgets = budgets_}),
      names_({.pool = pool,
              .store = store,
              .table = table_,
              .names_lock = names_lock_,
              .tree = tree_,
              .descriptors = descriptors_,
              .times = times_,
              .away = away_,
              .attributes = attributes_,
              .pins = pins_,
              .engine = engine_,
              .budgets = budgets_,
              .budget_trees = budgets_.trees(),
              .file_is_gone = [this](InodeId id) { file_is_gone(id); }}),
      files_({.pool = pool,
              .kernel = kernel,
              .table = table_,
              .names_lock = names_lock_,
              .tree = tree_,
              .descriptors = descriptors_,
              .attributes = attributes_,
              .names = names_,
              .pages = pages_,
              .accesses = accesses_,
              .relocator = relocator_,
              .engine = engine_,
              .budgets = budgets_,
              .small_file = settings.small_file,
              .file_is_free = [this](InodeId id) { file_is_free(id); }}),
      // The result is ignored: a plan that lacks the accesses of the last seconds is good enough.
      migration_(settings.migration ? std::make_unique<Migration>(
                                          pool, store, relocator_.switcher(), relocator_,
                                          [this] { [[maybe_unused]] const auto flushed = flush(); },
                                          with_census(*std::move(settings.migration)), clock)
                                    : nullptr),
      moves_(pool, tree_, attributes_, migration_.get()),
      gpu_({.pool = pool,
            .tree = tree_,
            .descriptors = descriptors_,
            .attributes = attributes_,
            .pages = pages_,
            .accesses = accesses_,
            .files = files_,
            .moves = moves_,
            .engine = engine_},
           {.table = table_,
            .tree = tree_,
            .descriptors = descriptors_,
            .attributes = attributes_,
            .engine = engine_,
            .list = std::move(settings.hbm_list)}),
      // The result is ignored: a forecast that lacks the accesses of the last seconds is good
      // enough.
      budget_keeper_({.pool = pool,
                      .store = store,
                      .table = table_,
                      .tree = tree_,
                      .descriptors = descriptors_,
                      .kernel = kernel,
                      .names = names_,
                      .trees = budgets_.trees(),
                      .budgets = budgets_,
                      .clock = clock,
                      .rest = settings.budget_rest,
                      .file_is_gone = [this](InodeId id) { file_is_gone(id); },
                      .flush = [this] { [[maybe_unused]] const auto flushed = flush(); }}),
      xattrs_({.pool = pool,
               .store = store,
               .tree = tree_,
               .descriptors = descriptors_,
               .attributes = attributes_,
               .pins = pins_,
               .hbm = gpu_.hbm_pins(),
               .accesses = accesses_,
               .gpu = gpu_,
               .moves = moves_,
               .budget_trees = budgets_.trees(),
               .forecast = budget_keeper_.forecast(),
               .clock = clock,
               .migration = migration_.get()}) {
  tree_.keep_spares();
}

Filesystem::~Filesystem() = default;

void Filesystem::change(Tuning tuning) {
  pins_.change_rules(tuning.migration.policy.rules);
  budgets_.trees().change_rules(std::move(tuning.budgets));
  if (migration_) migration_->change(std::move(tuning.migration), tuning.limits);
}

// Before the migration starts and after it has ended, no move waits for a file.
void Filesystem::file_is_free(InodeId id) {
  if (migration_) migration_->mover().file_closed(id);
}

void Filesystem::file_is_gone(InodeId id) {
  if (migration_) migration_->mover().cancel(id);
}

bool Filesystem::inherit() {
  const auto inherited = table_.inherit();
  for (const InodeId id : inherited.mapped) {
    const InodePtr inode = table_.find(id);
    if (!inode) continue;
    Inode::Locked state(*inode);
    pages_.watch(inode, *state);
  }
  if (std::all_of(pool_.begin(), pool_.end(), [](const auto& tier) { return tier->online(); }))
    return inherited.complete;
  table_.for_each_directory([](Inode& inode) {
    Inode::Locked state(inode);
    state->directory.partly_unknown = true;
  });
  return false;
}

Result<void> Filesystem::flush() { return accesses_.flush(); }

Result<void> Filesystem::close() {
  budget_keeper_.stop();
  gpu_.hbm_pins().stop();
  relocator_.finish_moves();
  migration_.reset();
  return flush();
}

void Filesystem::tick() {
  pages_.tick();
  relocator_.finish_moves();
  accesses_.tick();
  check_tiers();
  tree_.keep_spares();
  if (migration_) migration_->tick();
  if (++ticks_ % kTicksPerFlush != 0) return;
  if (const auto flushed = flush(); !flushed) {
    log::get().warn("cannot store access counts, keeping them in memory: why={}",
                    std::strerror(flushed.error().code));
  }
  table_.give_back_memory();
}

void Filesystem::check_tiers() {
  const MutexLock lock(presence_);
  for (const auto& tier : pool_) {
    if (tier->check_presence() && !tier->present()) tier_went_offline(*tier);
    // Repeated every second, because applying the changes made in its absence may fail at first.
    if (tier->present() && !tier->online()) tier_returned(*tier);
  }
}

// Closes everything on the tier, so that its disk can be unmounted.
void Filesystem::tier_went_offline(Tier& tier) {
  if (lists_ != nullptr)
    lists_->add(tier.member().slot, tree_.files_on(tier.index()), real_clock().seconds());
  engine_.forget_filesystem(tier.device());
  tree_.tier_went_offline(tier.index());
  pins_.tiers_changed();
  budgets_.trees().search_again();
}

// Intents that waited for the tier are executed before any request can see it.
void Filesystem::tier_returned(Tier& tier) {
  std::vector<InodeId> changed;
  {
    const ExclusiveLock no_names(names_lock_.mutex);
    if (const auto replayed = relocator_.replay_for(tier.index()); !replayed) {
      log::get().error("cannot use a tier that came back: tier={} why={}", tier.name(),
                       replayed.error().text());
      return;
    }
    away_.tier_returned();
    tier.admit();
    changed = tree_.rediscover_all(tier.index());
  }
  pins_.tiers_changed();
  budgets_.trees().search_again();
  pool_.take_back_tiers();
  drop_names_and_listings(changed);
  if (migration_) migration_->resume_requests();
}

Result<void> Filesystem::add_tier(const TierSettings& settings) {
  const MutexLock lock(presence_);
  SLUICE_TRY(pool_.add(settings));
  Tier& tier = *pool_.by_name(settings.name);
  tier_added(tier.index());
  return bring_online(tier);
}

Result<void> Filesystem::replace_tier(const TierSettings& settings) {
  const MutexLock lock(presence_);
  const std::size_t before = pool_.size();
  bool is_new_place = false;
  std::optional<unsigned> lost;
  // Without the lock: a disk that hangs must not stop those who use the others.
  Pool::Replacement replacement = SLUICE_TRY(pool_.prepare_replacement(settings));
  {
    const ExclusiveLock no_names(names_lock_.mutex);
    lost = pool_.replace(std::move(replacement));
    const TierIndex index = pool_.by_name(settings.name)->index();
    is_new_place = pool_.size() > before;
    away_.tier_returned();
    if (lost && !is_new_place) tree_.tier_replaced(index);
    // After a failure, the next mount does it.
    if (const auto settled = lost ? relocator_.settle_lost() : Result<void>(); !settled)
      log::get().warn("changes that need the lost disk are not resolved yet: why={}",
                      settled.error().text());
  }
  pool_.announce();
  // Behind the lock: a census may be writing its list.
  if (lost && lists_ != nullptr) lists_->add(*lost, {}, real_clock().seconds());
  Tier& tier = *pool_.by_name(settings.name);
  if (is_new_place) tier_added(tier.index());
  return bring_online(tier);
}

// Brings a disk online that is new under its name.
Result<void> Filesystem::bring_online(Tier& tier) {
  if (tier.online()) return {};
  if (tier.check_presence() && tier.present()) tier_returned(tier);
  if (tier.online()) return {};
  return Error{EIO, "use the new disk",
               "tier " + tier.name() + ": " + tier.path() + ": " + tier.why_offline() +
                   "; it is part of the pool, and is used as soon as that is possible"};
}

void Filesystem::tier_added(TierIndex tier) {
  tree_.tier_added(tier);
  std::vector<InodeId> changed;
  {
    const ExclusiveLock no_names(names_lock_.mutex);
    changed = tree_.rediscover_all(tier);
  }
  drop_names_and_listings(changed);
  pins_.tiers_changed();  // a pin may name the new tier
  budgets_.trees().search_again();
}

// Names that the kernel has cached may mean other files now.
void Filesystem::drop_names_and_listings(const std::vector<InodeId>& directories) {
  if (!kernel_.drop_all_names()) {
    std::vector<std::pair<InodeId, std::string>> names;
    table_.for_each([&](Inode& inode) {
      Inode::Locked state(inode);
      if (state->name.kernel_knows_since != 0 && !state->name.text.empty())
        names.emplace_back(state->name.parent, state->name.text);
    });
    for (const auto& [parent, name] : names) kernel_.drop_name(parent, name);
  }
  for (const InodeId id : directories) kernel_.drop_pages(id);
}

}  // namespace sluice
