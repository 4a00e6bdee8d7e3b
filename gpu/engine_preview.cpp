// SPDX-License-Identifier: BSD-2-Clause
// Describes what the engine would do with a file, in words that a user can act on.
#include <sys/stat.h>

#include <algorithm>

#include "base/units.hpp"
#include "gpu/engine.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/residency.hpp"

namespace sluice {
namespace {

std::string sentence(Route route, Why why) {
  return std::string(name_of(route)) + ": " + std::string(text_of(why));
}

std::string when_mapped(const std::variant<MappedFiles::Shared, Why>& found,
                        const Engine::Settings& settings) {
  const Why* why = std::get_if<Why>(&found);
  if (!why) return "registered now";
  switch (*why) {
    case Why::Registered:
      return "the next large read registers the page cache";
    case Why::ReadOnce:
      return "when the file is read a second time";
    case Why::Cached:
      return "for files from 16 MiB on; smaller ones are as fast without it";
    case Why::NotCached:
      return "once the whole file is in the page cache: read it, or prefetch it";
    case Why::Changed:
      return "once the file has not been changed for " +
             std::to_string(settings.mapped_after.count()) + " ms";
    case Why::NoMemoryLeft:
      return "not more than " + format_size(settings.mapped_bytes) +
             " of page cache may be registered at once: raise gpu_mapped_memory";
    default:
      return std::string(text_of(*why));
  }
}

}  // namespace

Engine::Preview Engine::preview(const EngineFile& file, std::uint64_t length, Device* device) {
  Preview preview;
  preview.alignment = std::max(direct_alignment(file.fd), 1u);
  if (!device) {
    preview.route = Route::Host;
    preview.why = Why::HostMemory;
    preview.words = sentence(preview.route, preview.why);
    return preview;
  }
  struct stat stat {};
  if (!settings_.enabled || ::fstat(file.fd, &stat) != 0) {
    preview.words = settings_.enabled ? "none: cannot stat the file"
                                      : "none: transfers to GPUs are turned off in the settings";
    return preview;
  }
  const auto version = FileVersion::of(stat);
  const Choice choice = parts_->foresee(file.fd, version, length, *device, file.user);
  preview.route = choice.route;
  preview.why = choice.why;
  preview.words = sentence(choice.route, choice.why);
  if (choice.route != Route::Gds) {
    const auto verdict = parts_->cufiles.judge(file.fd, version.id, *device);
    // A file with a direct path is staged only because the page cache has the bytes, which `words`
    // already says.
    if (!verdict.direct) preview.words += "; not gds: " + verdict.words;
  }
  return preview;
}

std::vector<Engine::Possibility> Engine::possibilities(const EngineFile& file, Device* device) {
  std::vector<Possibility> all;
  struct stat stat {};
  const bool readable = ::fstat(file.fd, &stat) == 0;
  if (!device || !settings_.enabled || !readable) {
    std::string words = !settings_.enabled ? "GPU transfers are off: set gpu = true"
                        : !readable        ? "cannot stat the file"
                                           : devices_.why_none();
    if (words.empty()) words = "no GPU was given";
    for (const Route route :
         {Route::Hbm, Route::Gds, Route::CuFile, Route::Mapped, Route::Staged, Route::Pageable}) {
      all.push_back({route, false, words});
    }
  } else {
    const auto version = FileVersion::of(stat);
    const auto verdict = parts_->cufiles.judge(file.fd, version.id, *device);
    const bool on = parts_->hbm.is_on();
    all.push_back({Route::Hbm, on,
                   on ? "for files that are read a second time"
                      : "off: set hbm to keep files in the memory of the GPU"});
    all.push_back({Route::Gds, verdict.direct, verdict.direct ? "ready" : verdict.words});
    all.push_back(
        {Route::CuFile, verdict.usable,
         verdict.usable ? "on request only; staged and mapped are faster" : verdict.words});
    const auto staged = parts_->staging(*device);
    const bool pinned = staged.has_value();
    const std::string lost = device->is_lost()
                                 ? "the GPU is lost for this process: restart it"
                                 : "cannot pin host memory: see the log, and free memory";
    const auto found =
        parts_->mapped.find(file.fd, version, *device, MappedFiles::Wish::Look, version.size);
    all.push_back({Route::Mapped, pinned, pinned ? when_mapped(found, parts_->settings) : lost});
    all.push_back({Route::Staged, pinned,
                   pinned ? format_size(pinned_bytes()) + " of host memory are pinned" : lost});
    all.push_back({Route::Pageable, !device->is_lost(),
                   device->is_lost() ? lost : "on request, or if no memory can be pinned"});
  }
  all.push_back({Route::Host, true, "ready"});
  return all;
}

}  // namespace sluice
