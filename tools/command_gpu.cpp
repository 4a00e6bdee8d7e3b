// SPDX-License-Identifier: BSD-2-Clause
// sluice gpu read, and the table of the verbs of `sluice gpu`.
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/units.hpp"
#include "gpu/route.hpp"
#include "tools/commands.hpp"
#include "tools/progress.hpp"

namespace sluice {
namespace {

constexpr std::string_view kVerb = "gpu read";

constexpr HelpText kReadHelp{
    .usage = "sluice gpu read [options] FILE...",
    .options =
        R"(      --gpu GPU       the GPU's UUID or number, as nvidia-smi -L lists it; default: 0
      --host          into host memory instead
      --offset SIZE   begin there; default: 0
      --length SIZE   read no more than this; default: to the end
      --route ROUTE   auto (default), gds, cufile, mapped, staged, mmap or host
      --check         compare what arrived with the file, byte by byte
      --json          one JSON object a file; its members are stable
  -h, --help          this list; the whole description
)",
    .details = R"(
Reads files into GPU memory as an application with libsluice would, and says of each
how many bytes came, how fast, by which route and why by that one. On a Sluice mount
the daemon does it, elsewhere, or where the daemon can't, this process does.

The memory is a buffer of 256 MiB at most, used again and again: what is measured is
the way there, and a file may be larger than the GPU. --check is not part of the time.

Examples:
  sluice gpu read /mnt/pool/model.safetensors
  sluice gpu read --check --gpu 1 --length 1GiB /mnt/pool/models/*
  sluice gpu read --route staged --json /mnt/pool/model.safetensors | jq .rate

Exit status: 0 all were read, 1 failed for a file or more, 2 wrong usage.
)"};

int gpu_read(int argc, char** argv) {
  CLI::App app;
  std::vector<std::string> paths;
  app.add_option("FILE", paths)->required();
  if (const auto code = parse_arguments(app, argc, argv, kReadHelp)) return *code;
  return fail(kVerb, "not there yet");
}

constexpr std::array kSubverbs{
    Subverb{"read", "read files into GPU memory, and say how fast and why", gpu_read},
};

}  // namespace

int command_gpu(int argc, char** argv) { return run_subverb(argc, argv, kSubverbs); }

}  // namespace sluice
