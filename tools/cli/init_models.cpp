// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/init_models.hpp"

#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

constexpr const char* kWeights = R"(
# Weights (safetensors, GGUF and others) need no rule. New files start on the fastest tier
# with room; what is used stays there, and the rest moves down when the room is needed. To
# keep a model on a tier, used or not: sluice pin TIER DIRECTORY
)";
constexpr const char* kDatasets = R"(
# Datasets start on the slowest tier, and move up if they are used often. A file has 0 bytes
# when its first tier is chosen, so rules with 'smaller = 1' apply only then.)";
constexpr const char* kBudget = R"(
# KV caches of inference servers. Beyond the budget, the files of least value are deleted.
[[rule]]
match = "/kv-cache"
)";
constexpr const char* kBlocks = R"(
# A block that moved to a slow disk may take longer to read than to compute again.
[[rule]]
match = "/kv-cache/**"
)";

// A tenth of the fastest tier, in whole GiB, or MiB if that is small.
std::string kv_budget(const TierOptions& fastest, std::uint64_t bytes) {
  constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
  if (bytes == 0) return "budget = \"100GiB\"\n";
  const std::uint64_t tenth = bytes / 10;
  const std::string size = tenth >= kGiB
                               ? std::to_string(tenth / kGiB) + "GiB"
                               : std::to_string(std::max(tenth / kMiB, std::uint64_t{1})) + "MiB";
  return "budget = \"" + size + "\"   # a tenth of tier " + fastest.name + "\n";
}

// Names of tiers have no characters that TOML would quote.
std::string to_tier(const TierOptions& tier) { return "tier = \"" + tier.name + "\"\n"; }

std::string in(const std::string& mountpoint, const char* directory) {
  return (mountpoint == "/" ? "" : mountpoint) + "/" + directory;
}

}  // namespace

std::string models_options() {
  return R"(
# Memory of each GPU for models that are loaded repeatedly. Programs that need most of a GPU
# when they start, such as vLLM, may then find too little: lower this, or leave it off.
#hbm = "20%"
)";
}

std::string models_rules(const std::vector<TierOptions>& tiers, std::uint64_t fastest_bytes) {
  const bool has_several = tiers.size() > 1;
  std::string out = kWeights;
  if (has_several) {
    out += kDatasets;
    for (const char* match : {"/datasets/**", "/hf/datasets/**", "/hf/hub/datasets--*/**"}) {
      out += "\n[[rule]]\nmatch = \"" + std::string(match) + "\"\nsmaller = 1\n" +
             to_tier(tiers.back());
    }
  }
  out += kBudget + kv_budget(tiers.front(), fastest_bytes);
  if (has_several) out += kBlocks + to_tier(tiers.front());
  return out;
}

std::vector<std::pair<std::string, std::string>> models_environment(const std::string& mountpoint) {
  return {{"HF_HOME", in(mountpoint, "hf")}, {"OLLAMA_MODELS", in(mountpoint, "ollama")}};
}

std::string models_steps(const std::string& mountpoint, const std::string& owner) {
  std::string out =
      "When it is mounted, create its directories, and set these variables for the programs:\n";
  const std::string owned = owner.empty() ? "" : " -o " + shell_word(owner);
  out += "  install -d" + owned;
  for (const char* directory : {"hf", "ollama", "comfyui", "datasets"}) {
    out += " " + shell_word(in(mountpoint, directory));
  }
  // Its blocks contain what users typed.
  out += "\n  install -d -m 700" + owned + " " + shell_word(in(mountpoint, "kv-cache")) + "\n";
  for (const auto& [name, value] : models_environment(mountpoint)) {
    out += "  export " + name + "=" + shell_word(value) + "\n";
  }
  return out + "docs/models.md is the guide, also for ComfyUI, datasets and KV caches.\n";
}

}  // namespace sluice::tools::cli
