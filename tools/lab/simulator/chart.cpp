// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/units.hpp"

namespace sluice::tools::lab {
namespace {

constexpr double kWidth = 980, kHeight = 540;
constexpr double kLeft = 72, kRight = 800, kTop = 76, kBottom = 472;

// Okabe and Ito's colours, which remain distinct with colour blindness; oracles are grey.
struct Look {
  std::string_view name, color, dashes;
  double width;
};
constexpr std::array kLooks{
    Look{"sluice", "#0072b2", "", 3.5},       Look{"lru", "#e69f00", "", 2},
    Look{"lfu", "#56b4e9", "8 3", 2},         Look{"arc", "#009e73", "", 2},
    Look{"s3fifo", "#cc79a7", "", 2},         Look{"gdsf", "#a07c00", "2 3", 2},
    Look{"autotier", "#d55e00", "8 3", 2},    Look{"belady", "#333333", "3 3", 2},
    Look{"belady-size", "#888888", "3 3", 2},
};
constexpr Look kOtherLook{"", "#000000", "", 2};

const Look& look_of(std::string_view name) {
  const auto* const found = std::find_if(kLooks.begin(), kLooks.end(),
                                         [&](const Look& look) { return look.name == name; });
  return found == kLooks.end() ? kOtherLook : *found;
}

std::string escaped_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Control bytes are not allowed in XML, not even escaped.
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

class Drawing {
 public:
  void line(double x1, double y1, double x2, double y2, std::string_view attributes) {
    out_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
            "\" y2=\"" + number(y2) + "\" " + std::string(attributes) + "/>\n";
  }
  void text(double x, double y, std::string_view words, std::string_view attributes) {
    out_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + std::string(attributes) +
            ">" + escaped_xml(words) + "</text>\n";
  }
  void add(const std::string& element) { out_ += element + "\n"; }
  const std::string& elements() const { return out_; }

 private:
  std::string out_;
};

std::string stroke_of(const Look& look) {
  return "fill=\"none\" stroke=\"" + std::string(look.color) + "\" stroke-width=\"" +
         number(look.width) + "\"" +
         (look.dashes.empty() ? "" : " stroke-dasharray=\"" + std::string(look.dashes) + "\"");
}

double y_of(double ratio) { return kBottom - ratio * (kBottom - kTop); }

void draw_axes(Drawing& drawing, const Chart& chart, const std::function<double(double)>& x_of) {
  for (int percent = 0; percent <= 100; percent += 20) {
    const double y = y_of(percent / 100.0);
    drawing.line(kLeft, y, kRight, y, "stroke=\"#e4e4e4\"");
    drawing.text(kLeft - 8, y + 4, std::to_string(percent) + "%", "text-anchor=\"end\"");
  }
  constexpr double kLabelWidth = 68;
  double last_label = -kLabelWidth;
  for (const auto& [value, label] : chart.x_ticks) {
    const double x = x_of(value);
    drawing.line(x, kBottom, x, kBottom + 5, "stroke=\"#555555\"");
    // Labels of sizes that are close together would overlap.
    if (x - last_label < (chart.has_dots ? kLabelWidth : 0)) continue;
    last_label = x;
    drawing.text(x, kBottom + 20, label, "text-anchor=\"middle\"");
  }
  drawing.line(kLeft, kBottom, kRight, kBottom, "stroke=\"#555555\"");
  drawing.line(kLeft, kTop, kLeft, kBottom, "stroke=\"#555555\"");
  drawing.text((kLeft + kRight) / 2, kBottom + 46, chart.x_label, "text-anchor=\"middle\"");
  const double middle = (kTop + kBottom) / 2;
  drawing.text(20, middle, chart.y_label,
               "text-anchor=\"middle\" transform=\"rotate(-90 20 " + number(middle) + ")\"");
}

}  // namespace

std::string svg_of(const Chart& chart) {
  const double first = chart.x_ticks.front().first;
  const double last = std::max(chart.x_ticks.back().first, first + 1e-9);
  const auto x_of = [&](double x) {
    return kLeft + (x - first) / (last - first) * (kRight - kLeft);
  };
  Drawing drawing;
  drawing.text(kLeft, 30, chart.title, "font-size=\"18\" font-weight=\"bold\"");
  drawing.text(kLeft, 52, chart.subtitle, "fill=\"#555555\"");
  draw_axes(drawing, chart, x_of);

  // Sluice last, so that its line is on top.
  auto lines = chart.lines;
  std::stable_partition(lines.begin(), lines.end(),
                        [](const Chart::Line& line) { return line.name != "sluice"; });
  for (const auto& line : lines) {
    const auto& look = look_of(line.name);
    std::string points;
    for (const auto& [x, y] : line.points) {
      points += (points.empty() ? "" : " ") + number(x_of(x)) + "," + number(y_of(y));
      if (chart.has_dots) {
        drawing.add("<circle cx=\"" + number(x_of(x)) + "\" cy=\"" + number(y_of(y)) +
                    "\" r=\"3.5\" fill=\"" + std::string(look.color) + "\"/>");
      }
    }
    drawing.add("<polyline points=\"" + points + "\" stroke-linejoin=\"round\" " + stroke_of(look) +
                "/>");
  }
  double y = kTop + 10;
  for (const auto& line : chart.lines) {
    drawing.line(kRight + 20, y - 4, kRight + 52, y - 4, stroke_of(look_of(line.name)));
    drawing.text(kRight + 60, y, line.name, "text-anchor=\"start\"");
    y += 24;
  }
  const std::string size = number(kWidth) + " " + number(kHeight);
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
         "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
         size + "\" width=\"" + number(kWidth) + "\" height=\"" + number(kHeight) +
         "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n"
         "<title>" +
         escaped_xml(chart.title) +
         "</title>\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
         drawing.elements() + "</svg>\n";
}

Chart chart_over_sizes(std::span<const ReplayResult> outcomes, const std::string& subtitle) {
  Chart chart{.title = "Requests served by the fastest tier",
              .subtitle = subtitle,
              .x_label = "size of the fastest tier (logarithmic)",
              .y_label = "hit ratio",
              .has_dots = true};
  // Logarithmic, because sizes of interest span orders of magnitude.
  const auto x_of = [](const ReplayResult& outcome) {
    return std::log2(static_cast<double>(std::max<std::uint64_t>(outcome.fast_bytes, 1)));
  };
  for (const auto& outcome : outcomes) {
    const auto line =
        std::find_if(chart.lines.begin(), chart.lines.end(),
                     [&](const Chart::Line& known) { return known.name == outcome.policy; });
    const std::pair point{x_of(outcome), outcome.hit_ratio()};
    if (line == chart.lines.end()) {
      chart.lines.push_back({outcome.policy, {point}});
    } else {
      line->points.push_back(point);
    }
    chart.x_ticks.emplace_back(point.first, format_size(outcome.fast_bytes));
  }
  std::sort(chart.x_ticks.begin(), chart.x_ticks.end());
  chart.x_ticks.erase(std::unique(chart.x_ticks.begin(), chart.x_ticks.end()), chart.x_ticks.end());
  for (auto& line : chart.lines) std::sort(line.points.begin(), line.points.end());
  return chart;
}

Chart chart_over_time(std::span<const ReplayResult> outcomes, const Trace& trace,
                      const std::string& subtitle) {
  const double seconds = static_cast<double>(trace.span_us()) / 1e6;
  const bool in_days = seconds >= 3.0 * 24 * 3600;
  const bool in_hours = !in_days && seconds >= 3.0 * 3600;
  const double unit = in_days ? 24 * 3600 : in_hours ? 3600 : 60;
  Chart chart{.title = "Requests served by the fastest tier",
              .subtitle = subtitle,
              .x_label = in_days    ? "days"
                         : in_hours ? "hours"
                                    : "minutes",
              .y_label = "hit ratio"};
  const double span = std::max(seconds / unit, 1.0);
  double step = 1;
  for (const double nice : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0}) {
    step = nice;
    if (span / step <= 15) break;
  }
  for (double at = 0; at <= std::ceil(span / step) * step + 1e-9; at += step) {
    std::array<char, 32> label{};
    std::snprintf(label.data(), label.size(), "%.0f", at);
    chart.x_ticks.emplace_back(at, label.data());
  }
  for (const auto& outcome : outcomes) {
    Chart::Line line{outcome.policy, {}};
    for (std::size_t i = 0; i < outcome.slices.size(); ++i) {
      if (outcome.slices[i].requests == 0) continue;
      const double x =
          span * (static_cast<double>(i) + 0.5) / static_cast<double>(outcome.slices.size());
      line.points.emplace_back(x, outcome.slices[i].ratio());
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace sluice::tools::lab
