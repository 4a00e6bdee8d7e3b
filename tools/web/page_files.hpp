// SPDX-License-Identifier: BSD-2-Clause
// The files of tools/web/page, compiled into the program by tools/web/embed.cmake. Immutable.
#pragma once

#include <span>
#include <string_view>

namespace sluice::tools::web {

struct WebFile {
  std::string_view path;  // "/", "/page.js"
  std::string_view type;
  std::string_view content;
};
std::span<const WebFile> web_files();

}  // namespace sluice::tools::web
