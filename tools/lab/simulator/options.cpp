// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/log.hpp"
#include "base/units.hpp"

namespace sluice::tools::lab {
namespace {

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(',');
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Error invalid(std::string detail) { return {EINVAL, "read options", std::move(detail)}; }

std::string in_quotes(std::string_view text) { return "'" + log::escaped(text) + "'"; }

std::optional<double> positive_number(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

Result<TierSize> parse_tier_size(std::string_view text) {
  if (text.ends_with('%')) {
    const auto percent = positive_number(text.substr(0, text.size() - 1));
    if (percent && *percent > 0) return TierSize{.percent = *percent};
  } else if (const auto bytes = parse_size(text); bytes && *bytes > 0) {
    return TierSize{.bytes = *bytes};
  }
  return invalid(in_quotes(text) +
                 " is not a size; expected a size like 10GiB or a percentage like 5%");
}

double default_threshold(std::size_t tier, std::size_t tiers) {
  return tier + 1 == tiers ? 0 : tier + 2 == tiers ? 10 : 100;
}

double threshold_of(const std::vector<TierSpec>& tiers, std::size_t tier) {
  return tiers[tier].threshold.value_or(default_threshold(tier, tiers.size()));
}

// By the kind of disk that a tier is named after, otherwise by its position.
TierSpeed speed_of(std::string_view name, std::size_t tier, std::size_t tiers) {
  if (name.starts_with("nvme")) return usual_speed(StorageKind::Nvme);
  if (name.starts_with("ssd")) return usual_speed(StorageKind::Ssd);
  if (name.starts_with("hdd")) return usual_speed(StorageKind::Hdd);
  return usual_speed(tier, tiers);
}

}  // namespace

std::uint64_t TierSize::in(const Trace& trace) const {
  // Half of the 64-bit range, so that sums of sizes do not overflow.
  if (is_unlimited) return std::numeric_limits<std::uint64_t>::max() / 2;
  if (percent == 0) return bytes;
  return static_cast<std::uint64_t>(static_cast<double>(trace.total_bytes()) * percent / 100);
}

Result<std::vector<TierSpec>> parse_tiers(std::string_view text) {
  constexpr std::size_t kMostTiers = 16;
  std::vector<TierSpec> out;
  const auto parts = parts_of(text);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto equals = parts[i].find('=');
    TierSpec tier{.name = std::string(parts[i].substr(0, equals))};
    if (tier.name.empty()) {
      return invalid(in_quotes(text) +
                     " has a tier without a name; expected nvme=10GiB,ssd=100GiB,hdd");
    }
    for (const auto& other : out) {
      if (other.name == tier.name) return invalid("two tiers are named " + in_quotes(tier.name));
    }
    if (equals != std::string_view::npos) {
      const auto size = parse_tier_size(parts[i].substr(equals + 1));
      if (!size) return size.error().at("tier " + in_quotes(tier.name));
      tier.size = *size;
    } else if (i + 1 == parts.size()) {
      tier.size.is_unlimited = true;
    } else {
      return invalid("tier " + in_quotes(tier.name) +
                     " has no size; only the slowest tier may omit it");
    }
    out.push_back(std::move(tier));
  }
  if (out.size() < 2)
    return invalid("at least two tiers are needed; expected nvme=10GiB,hdd or more");
  if (out.size() > kMostTiers) return invalid("more than 16 tiers");
  return out;
}

Result<std::vector<TierSize>> parse_sizes(std::string_view text) {
  std::vector<TierSize> out;
  for (const auto part : parts_of(text)) out.push_back(SLUICE_TRY(parse_tier_size(part)));
  return out;
}

Result<void> parse_thresholds(std::string_view text, std::vector<TierSpec>& tiers) {
  for (const auto part : parts_of(text)) {
    const auto equals = std::min(part.find('='), part.size());
    const auto tier = std::find_if(tiers.begin(), tiers.end(), [&](const TierSpec& known) {
      return known.name == part.substr(0, equals);
    });
    if (tier == tiers.end()) {
      return invalid(in_quotes(part) + " is not a tier of --tiers; expected nvme=100,ssd=10");
    }
    const auto value = positive_number(part.substr(std::min(equals + 1, part.size())));
    if (!value) return invalid(in_quotes(part) + " has no score; expected nvme=100,ssd=10");
    tier->threshold = *value;
  }
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    if (i > 0 && threshold_of(tiers, i) > threshold_of(tiers, i - 1)) {
      return invalid("the threshold of " + in_quotes(tiers[i].name) +
                     " is above that of the faster tier " + in_quotes(tiers[i - 1].name));
    }
  }
  if (threshold_of(tiers, tiers.size() - 1) != 0) {
    return invalid("the slowest tier, " + in_quotes(tiers.back().name) +
                   ", must accept every file: its threshold must be 0");
  }
  return {};
}

Result<std::vector<std::string>> parse_policies(std::string_view text) {
  const auto known = contender_names();
  std::vector<std::string> out;
  if (text == "all") {
    // A budget is not a way to choose between tiers.
    for (const auto name : known) {
      if (name != "budget") out.emplace_back(name);
    }
    return out;
  }
  for (const auto part : parts_of(text)) {
    if (std::find(known.begin(), known.end(), part) == known.end()) {
      std::string list;
      for (const auto name : known) list.append(list.empty() ? "" : ", ").append(name);
      return invalid(in_quotes(part) + " is not a policy; expected 'all' or some of " + list);
    }
    if (std::find(out.begin(), out.end(), part) == out.end()) out.emplace_back(part);
  }
  return out;
}

Result<std::chrono::seconds> parse_span(std::string_view text, std::string_view zero) {
  if (!zero.empty() && text == zero) return std::chrono::seconds(0);
  if (const auto parsed = parse_duration(text)) return *parsed;
  return invalid(in_quotes(text) +
                 " is not a time; expected a time like 90s, 15min, 12h, 7d or 2w" +
                 (zero.empty() ? "" : ", or " + std::string(zero)));
}

std::vector<SimulatedTier> resolve(const std::vector<TierSpec>& specs, const Trace& trace) {
  std::vector<SimulatedTier> tiers;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    tiers.push_back({.name = specs[i].name,
                     .bytes = specs[i].size.in(trace),
                     .threshold = threshold_of(specs, i),
                     .speed = speed_of(specs[i].name, i, specs.size())});
  }
  return tiers;
}

}  // namespace sluice::tools::lab
