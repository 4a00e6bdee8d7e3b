// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/trace.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "base/log.hpp"
#include "tools/lab/simulator/kv_trace.hpp"

namespace sluice::tools::lab {
namespace {

Error bad_trace(int code, std::string text) { return {code, "read a trace", std::move(text)}; }

constexpr std::size_t kOracleRecord = 24;
constexpr std::size_t kLongestLine = 1 << 20;
constexpr double kLatestTime = 9e12;  // seconds: in microseconds it still fits 64 bits

std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 60;
  return "'" + log::escaped(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "") + "'";
}

// A file with lookahead, so that the format of a pipe can be detected.
class Input {
 public:
  explicit Input(std::FILE* file) : file_(file) {}

  // At least `wanted` bytes if the file has them, without consuming them.
  std::string_view peek(std::size_t wanted) {
    while (buffer_.size() - at_ < wanted && refill()) {
    }
    return std::string_view(buffer_).substr(at_);
  }

  // Up to `most` bytes; fewer only at the end. Valid until the next call.
  std::string_view take(std::size_t most) {
    const auto bytes = peek(most).substr(0, most);
    at_ += bytes.size();
    return bytes;
  }

  // The next line without its end, or nothing after the last. Valid until the next call.
  std::optional<std::string_view> line() {
    std::size_t searched = 0;
    for (;;) {
      const auto rest = std::string_view(buffer_).substr(at_);
      const auto end = rest.find('\n', searched);
      if (end != rest.npos) {
        at_ += end + 1;
        return rest.substr(0, end);
      }
      searched = rest.size();
      if (searched > kLongestLine || !refill()) break;
    }
    if (at_ == buffer_.size()) return std::nullopt;
    const auto last = std::string_view(buffer_).substr(at_);
    at_ = buffer_.size();
    return last;
  }

  bool failed() const { return std::ferror(file_) != 0; }

 private:
  bool refill() {
    constexpr std::size_t kBlock = 1 << 20;
    buffer_.erase(0, at_);
    at_ = 0;
    const auto old = buffer_.size();
    buffer_.resize(old + kBlock);
    const auto got = std::fread(buffer_.data() + old, 1, kBlock, file_);
    buffer_.resize(old + got);
    return got > 0;
  }

  std::FILE* file_;
  std::string buffer_;
  std::size_t at_ = 0;
};

// Collects records. Objects are numbered in the order of their first appearance.
class Builder {
 public:
  explicit Builder(Trace& trace) : trace_(trace) { trace_ = {}; }

  // False if there are too many records for 32-bit numbers.
  bool add(std::int64_t time, std::uint64_t id, std::uint64_t size) {
    if (trace_.times.size() >= kNeverAgain) return false;
    const auto [found, is_new] =
        numbers_.try_emplace(id, static_cast<std::uint32_t>(trace_.sizes.size()));
    if (is_new) trace_.sizes.push_back(0);
    auto& known = trace_.sizes[found->second];
    known = std::max(known, size);
    if (!trace_.times.empty() && time < trace_.times.back()) ++trace_.out_of_order;
    trace_.times.push_back(time);
    trace_.objects.push_back(found->second);
    return true;
  }

 private:
  Trace& trace_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
};

constexpr const char* kTooMany = "more than 4,294,967,294 records; split the trace";

// Not an error: recording threads may write lines slightly out of order.
void sort_by_time(Trace& trace) {
  if (trace.out_of_order == 0) return;
  std::vector<std::uint32_t> order(trace.records());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return trace.times[a] < trace.times[b]; });
  std::vector<std::int64_t> times;
  std::vector<std::uint32_t> objects;
  times.reserve(order.size());
  objects.reserve(order.size());
  for (const auto record : order) {
    times.push_back(trace.times[record]);
    objects.push_back(trace.objects[record]);
  }
  trace.times = std::move(times);
  trace.objects = std::move(objects);
}

// Fields of one line. A field that begins with a quote ends at the next single one; "" is a quote
// in it. False if the last is still open at the line's end. Quoted fields keep their quotes.
bool split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  std::size_t at = 0;
  for (;;) {
    std::size_t end = at;
    if (at < line.size() && line[at] == '"') {
      for (std::size_t from = at + 1;; from = end + 2) {
        end = line.find('"', from);
        if (end == line.npos) return false;
        if (end + 1 >= line.size() || line[end + 1] != '"') break;
      }
    }
    end = line.find(',', end);
    fields.push_back(line.substr(at, end == line.npos ? end : end - at));
    if (end == line.npos) return true;
    at = end + 1;
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const auto first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  text = text.substr(first, text.find_last_not_of(kBlank) - first + 1);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  return text;
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// An id may be any text. A number is used as it is, other texts are hashed.
std::uint64_t id_of(std::string_view text) {
  if (const auto number = number_in<std::uint64_t>(text)) return *number;
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

struct Columns {
  std::size_t time = 0, id = 1, size = 2;
  std::size_t needed() const { return std::max({time, id, size}) + 1; }
};

std::optional<Columns> columns_in(const std::vector<std::string_view>& header) {
  const auto find = [&](std::initializer_list<std::string_view> names) {
    return static_cast<std::size_t>(std::find_if(header.begin(), header.end(),
                                                 [&](std::string_view field) {
                                                   return std::find(names.begin(), names.end(),
                                                                    trimmed(field)) != names.end();
                                                 }) -
                                    header.begin());
  };
  const Columns columns{.time = find({"time", "timestamp", "clock_time", "ts"}),
                        .id = find({"id", "obj_id", "object", "key"}),
                        .size = find({"size", "obj_size", "bytes"})};
  if (columns.needed() > header.size()) return std::nullopt;
  return columns;
}

class CsvReader {
 public:
  CsvReader(const std::string& name, Input& input, Trace& trace)
      : name_(name), input_(input), builder_(trace) {}

  Result<void> read() {
    std::vector<std::string_view> fields;
    std::string joined;
    while (const auto line = input_.line()) {
      ++number_;
      auto text = *line;
      if (text.size() > kLongestLine) return wrong("is longer than 1 MiB; expected text");
      const auto first = number_;
      if (!split(text, fields)) {
        // A quoted path may contain newlines.
        joined = text;
        bool is_closed = false;
        while (!is_closed && joined.size() < kLongestLine) {
          const auto more = input_.line();
          if (!more) break;
          ++number_;
          joined.append("\n").append(*more);
          is_closed = split(joined, fields);
        }
        if (!is_closed) {
          number_ = first;
          return wrong("a quote is not closed");
        }
      }
      const auto last = number_;
      number_ = first;
      SLUICE_TRY(take(fields));
      number_ = last;
    }
    return {};
  }

 private:
  Error wrong(const std::string& what) const {
    return bad_trace(EINVAL, name_ + ":" + std::to_string(number_) + ": " + what);
  }

  Result<void> take(const std::vector<std::string_view>& fields) {
    auto first = trimmed(fields.front());
    if (number_ == 1 && first.starts_with("\xef\xbb\xbf")) first.remove_prefix(3);
    if (fields.size() == 1 && (first.empty() || first.front() == '#')) return {};
    if (first.starts_with('#')) return {};
    if (!began_) {
      began_ = true;
      if (!number_in<double>(first)) return take_header(fields, first);
    }
    if (fields.size() < columns_.needed()) {
      return wrong(std::to_string(fields.size()) + " fields; expected " +
                   (has_header_ ? "the columns of the header" : "time,id,size"));
    }
    const auto time = trimmed(fields[columns_.time]);
    const auto seconds = number_in<double>(columns_.time == 0 ? first : time);
    if (!seconds || !std::isfinite(*seconds) || *seconds < 0 || *seconds > kLatestTime) {
      return wrong("time is " + quoted(time) + "; expected seconds, such as 1700000000.25");
    }
    const auto id = trimmed(fields[columns_.id]);
    if (id.empty()) return wrong("the id is empty; expected a number or a word");
    const auto size_text = trimmed(fields[columns_.size]);
    const auto size = number_in<std::uint64_t>(size_text);
    if (!size) return wrong("size is " + quoted(size_text) + "; expected a number of bytes");
    if (!builder_.add(static_cast<std::int64_t>(std::llround(*seconds * 1e6)), id_of(id), *size)) {
      return wrong(kTooMany);
    }
    return {};
  }

  Result<void> take_header(std::vector<std::string_view> fields, std::string_view first) {
    fields.front() = first;
    const auto found = columns_in(fields);
    if (!found) {
      return wrong("begins with " + quoted(first) +
                   "; expected a header that names time, id and size, or a record of these three");
    }
    columns_ = *found;
    has_header_ = true;
    return {};
  }

  const std::string& name_;
  Input& input_;
  Builder builder_;
  Columns columns_;
  std::uint64_t number_ = 0;
  bool began_ = false;
  bool has_header_ = false;
};

template <typename Number>
Number little_endian(const char* bytes) {
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    value = static_cast<Number>(value << 8 | static_cast<unsigned char>(bytes[i]));
  }
  return value;
}

Result<void> read_oracle(const std::string& name, Input& input, Trace& trace) {
  Builder builder(trace);
  std::uint32_t before = 0;
  for (std::uint64_t number = 1;; ++number) {
    const auto record = input.take(kOracleRecord);
    const auto wrong = [&](const std::string& what) {
      return bad_trace(EINVAL, name + ": record " + std::to_string(number) + " (byte " +
                                   std::to_string((number - 1) * kOracleRecord) + "): " + what);
    };
    if (record.empty()) return {};
    if (record.size() < kOracleRecord) {
      return wrong("the file ends after " + std::to_string(record.size()) +
                   " of its bytes; expected records of 24 bytes");
    }
    const auto time = little_endian<std::uint32_t>(record.data());
    // The fourth field, the next access, is ignored: it is a record number of the original trace,
    // which is wrong in a part or sample of it.
    if (time < before) {
      return wrong("time " + std::to_string(time) + " is before " + std::to_string(before) +
                   ", the time of the previous record; expected times in ascending order (is this "
                   "oracleGeneral? --format csv reads text)");
    }
    before = time;
    if (!builder.add(std::int64_t{time} * 1'000'000,
                     little_endian<std::uint64_t>(record.data() + 4),
                     little_endian<std::uint32_t>(record.data() + 12))) {
      return wrong(kTooMany);
    }
  }
}

Result<void> read_kv(const std::string& name, Input& input, Trace& trace) {
  Builder builder(trace);
  for (std::size_t number = 1; const auto line = input.line(); ++number) {
    if (line->find_first_not_of(" \t\r") == line->npos) continue;
    const auto request = parse_kv_request(*line);
    if (!request) {
      return bad_trace(EINVAL, name + ":" + std::to_string(number) + ": " + quoted(*line) + ": " +
                                   request.error().text() +
                                   "; expected a JSON object with timestamp and hash_ids");
    }
    for (const std::uint64_t block : request->blocks) {
      if (!builder.add(request->time, block, kKvBlockBytes))
        return bad_trace(EFBIG, name + ": " + kTooMany);
    }
  }
  return {};
}

TraceFormat guess_format(const std::string& path, std::string_view beginning) {
  std::string lower = path;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower.ends_with(".csv")) return TraceFormat::Csv;
  if (lower.find("oraclegeneral") != lower.npos) return TraceFormat::Oracle;
  if (is_kv_trace(beginning)) return TraceFormat::Kv;
  // Every oracleGeneral record contains zero bytes; text does not.
  const bool has_zero = beginning.substr(0, 4096).find('\0') != beginning.npos;
  return has_zero ? TraceFormat::Oracle : TraceFormat::Csv;
}

// "zstd" or "gzip" if that is what the file is.
const char* compression_of(std::string_view beginning) {
  if (beginning.starts_with("\x28\xb5\x2f\xfd")) return "zstd";
  if (beginning.starts_with("\x1f\x8b")) return "gzip";
  return nullptr;
}

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

}  // namespace

std::uint64_t Trace::total_bytes() const {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

std::optional<TraceFormat> trace_format(std::string_view word) {
  if (word == "csv") return TraceFormat::Csv;
  if (word == "oracle") return TraceFormat::Oracle;
  if (word == "kv") return TraceFormat::Kv;
  return std::nullopt;
}

Result<void> read_trace(const std::string& path, std::optional<TraceFormat> forced, Trace& trace) {
  const std::string name = path == "-" ? "standard input" : path;
  const std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin
                                                               : std::fopen(path.c_str(), "rbe"));
  if (!file) {
    const int code = errno;
    return bad_trace(code, name + ": " + std::strerror(code));
  }
  Input input(file.get());
  const auto beginning = input.peek(4096);
  if (const char* tool = compression_of(beginning)) {
    return bad_trace(EINVAL, name + ": the file is compressed; decompress it first, or pipe it: '" +
                                 tool + " -dc FILE | sluice-lab simulate --trace - ...'");
  }
  const auto format = forced.value_or(guess_format(path, beginning));
  SLUICE_TRY(format == TraceFormat::Oracle ? read_oracle(name, input, trace)
             : format == TraceFormat::Kv   ? read_kv(name, input, trace)
                                           : CsvReader(name, input, trace).read());
  if (input.failed()) {
    const int code = errno;
    return bad_trace(code, name + ": " + std::strerror(code));
  }
  if (trace.times.empty()) {
    return bad_trace(EINVAL, name + ": no records; expected lines of time,id,size or binary " +
                                 "oracleGeneral records");
  }
  sort_by_time(trace);
  return {};
}

std::vector<std::uint32_t> next_uses(const Trace& trace) {
  std::vector<std::uint32_t> next(trace.records());
  std::vector<std::uint32_t> upcoming(trace.sizes.size(), kNeverAgain);
  for (auto record = trace.records(); record-- > 0;) {
    auto& mine = upcoming[trace.objects[record]];
    next[record] = mine;
    mine = static_cast<std::uint32_t>(record);
  }
  return next;
}

}  // namespace sluice::tools::lab
