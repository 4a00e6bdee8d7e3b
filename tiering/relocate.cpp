// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/relocate.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "tiering/copier.hpp"

namespace sluice {

Result<HiddenCopy> make_hidden_copy(int source, const Identity& identity, Tier& to) {
  const SharedFd temp = SLUICE_TRY(to.temp_directory());
  HiddenCopy copy;
  copy.name = Tier::new_temp_name();
  copy.fd.reset(
      ::openat(temp->get(), copy.name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!copy.fd) return Error::last("create copy");
  const auto fill = [&]() -> Result<void> {
    SLUICE_TRY(copy_data(source, copy.fd.get()));
    SLUICE_TRY(to.carry_identity(copy.fd.get(), identity));
    SLUICE_TRY(copy_attributes(source, copy.fd.get()));
    if (::fsync(copy.fd.get()) < 0) return Error::last("sync copy");
    copy.located = SLUICE_TRY(to.identify(copy.fd.get(), ""));
    return {};
  };
  const auto filled = fill();
  if (!filled) {
    discard(copy, to);
    return filled.error();
  }
  return copy;
}

void discard(const HiddenCopy& copy, const Tier& tier) {
  // If it can't be removed now, the next mount clears .sluice/tmp.
  if (const auto temp = tier.temp_directory()) ::unlinkat((*temp)->get(), copy.name.c_str(), 0);
}

Result<void> switch_to_copy(Store& store, const Pool& pool, const HiddenCopy& copy,
                            const Tier& from, int from_dir, const Tier& to, int to_dir,
                            const std::string& name) {
  const SharedFd temp = SLUICE_TRY(to.temp_directory());
  Step place;
  place.kind = Step::Kind::Rename;
  place.from = SLUICE_TRY(place_at(to, temp->get(), copy.name));
  place.to = SLUICE_TRY(place_at(to, to_dir, name));
  place.subject = copy.located.identity;
  Step remove;
  remove.kind = Step::Kind::Unlink;
  remove.from = SLUICE_TRY(place_at(from, from_dir, name));
  remove.subject = copy.located.identity;
  return carry_out(store, pool, {place, remove});
}

}  // namespace sluice
