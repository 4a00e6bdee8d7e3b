// SPDX-License-Identifier: BSD-2-Clause
// Everything that people read about options, written from the table in fs/control/option_table.cpp:
// the list of `sluice mount --help`, and what `sluice manual options` prints for the man page
// sluice.toml(5), packaging/sluice.toml and docs/configuration.md. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace sluice::tools {

// The options of `sluice mount` that come from the table, one to three lines each.
std::string mount_option_lines();
// "keys: capacity, high_watermark, ...": what may follow NAME=PATH.
std::string tier_setting_lines();

// The rows of a group ("mount", "heat", "gpu", "debug", "tier", "rule"): in roff, and as a table in
// Markdown. Empty if there is no such group.
std::string options_in_roff(std::string_view group);
std::string options_in_markdown(std::string_view group);
// The whole of packaging/sluice.toml.
std::string reference_file();

// `sluice manual options roff|markdown GROUP` and `sluice manual options toml`.
int print_options(std::string_view format, std::string_view group);

}  // namespace sluice::tools
