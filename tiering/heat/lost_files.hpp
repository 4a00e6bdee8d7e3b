// SPDX-License-Identifier: BSD-2-Clause
// Which files were on a disk that is gone, as far as that is known: from the lists that were kept
// (file_lists.hpp), from the moves since, and from heat. Threads: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "metadata/store.hpp"
#include "tiering/heat/file_lists.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

struct LostFiles {
  std::int64_t census_time = 0;  // when every file on the disk was listed; 0: never
  std::vector<FileLists::File> files;
  std::uint64_t elsewhere = 0;  // listed too, but there is a file of that name on another tier
  std::uint64_t nameless = 0;   // files of which only accesses are known
};

// `name` is a tier that is offline or was given up, or one whose disk was replaced: then it means
// the last disk before, and "ssd#2" means the one with that slot. An error says what to do.
Result<LostFiles> lost_files(const Pool& pool, const Store& store, const FileLists& lists,
                             const std::string& name, const std::function<bool()>& go_on = {});

}  // namespace sluice
