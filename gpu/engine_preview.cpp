// SPDX-License-Identifier: BSD-2-Clause
// Describes what the engine would do with a file, in words that a user can act on.
#include <sys/stat.h>

#include <algorithm>

#include "gpu/engine.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/residency.hpp"

namespace sluice {

Engine::Preview Engine::preview(const EngineFile& file, std::uint64_t length, Device* device) {
  Preview preview;
  preview.alignment = std::max(direct_alignment(file.fd), 1u);
  struct stat stat {};
  if (device && (!settings_.enabled || ::fstat(file.fd, &stat) != 0)) {
    preview.words = settings_.enabled ? "none: cannot stat the file"
                                      : "none: transfers to GPUs are turned off in the settings";
    return preview;
  }
  const auto version = FileVersion::of(stat);
  const Segment all{0, 0, std::min(length, version.size)};
  RouteQuery query{file, version, device, {&all, 1}, Route::Auto, Purpose::Preview};
  const RouteChoice choice = parts_->choose(query);
  preview.route = choice.row->route;
  preview.why = choice.why;
  preview.words = std::string(choice.row->name) + ": " + std::string(text_of(choice.why));
  if (device && preview.route != Route::Gds) {
    const auto verdict = parts_->cufiles.judge(file.fd, version.id, *device);
    // A file with a direct path is staged only because the page cache has the bytes, which `words`
    // already says.
    if (!verdict.direct) preview.words += "; not gds: " + verdict.words;
  }
  return preview;
}

std::vector<Engine::Possibility> Engine::possibilities(const EngineFile& file, Device* device) {
  struct stat stat {};
  const bool readable = ::fstat(file.fd, &stat) == 0;
  std::string none = !settings_.enabled ? "GPU transfers are off: set gpu = true"
                     : !readable        ? "cannot stat the file"
                     : !device          ? devices_.why_none()
                                        : "";
  if (none.empty() && !device) none = "no GPU was given";
  const RouteQuery query{file, FileVersion::of(stat), device, {}, Route::Auto, Purpose::Preview};
  std::vector<Possibility> all;
  for (const auto& [route, name, on_gpu, unasked, way] : route_table()) {
    if (on_gpu && !none.empty()) {
      all.push_back({route, false, none});
    } else {
      all.push_back(way->describe ? way->describe(*parts_, query)
                                  : Possibility{route, true, "ready"});
    }
  }
  return all;
}

}  // namespace sluice
