// SPDX-License-Identifier: BSD-2-Clause
// Models on ordinary files and host memory, and inconsistent headers.
#include "tests/unit/client/model.hpp"

#include <unistd.h>

#include <cerrno>
#include <random>

namespace sluice {
namespace {

using test::ModelHandle;
using test::open_model;
using test::pack;
using test::pack_tensors;
using test::random_bytes;
using test::register_memory;

class ModelTest : public ::testing::Test {
 protected:
  // Loads the whole model and returns the arena.
  static std::string load(const ModelHandle& model, std::size_t offset = 0) {
    std::string arena(offset + sluice_model_arena(model.get()), '\0');
    const auto buffer = register_memory(arena.data(), arena.size());
    struct sluice_result result {};
    const auto done =
        sluice_model_load(model.get(), buffer.get(), offset, nullptr, nullptr, &result);
    EXPECT_GE(done, 0) << sluice_error();
    EXPECT_EQ(result.bytes, static_cast<std::uint64_t>(done));
    return arena;
  }

  static std::string bytes_of(const std::string& arena, const ModelHandle& model,
                              const char* name) {
    const auto* tensor = sluice_model_find(model.get(), name);
    if (tensor == nullptr) return "no such tensor";
    return arena.substr(tensor->arena_offset, tensor->bytes);
  }

  std::string error_of(const std::string& path, int code = EUCLEAN) {
    sluice_model* model = nullptr;
    EXPECT_EQ(sluice_model_open(path.c_str(), &model), -code) << sluice_error();
    return sluice_error();
  }

  test::TempDir dir_;
};

TEST_F(ModelTest, ListsTheTensorsOfAFile) {
  const std::string header =
      R"({"b":{"dtype":"BF16","shape":[3,2],"data_offsets":[4,16]},"__metadata__":{"a":"b"},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const auto model = open_model(dir_.make_file("m.safetensors", pack(header, "0123456789abcdef")));
  ASSERT_EQ(sluice_model_count(model.get()), 2u);
  const auto* scalar = sluice_model_tensor(model.get(), 0);
  EXPECT_STREQ(scalar->name, "a");
  EXPECT_EQ(scalar->dimensions, 0u);
  EXPECT_EQ(scalar->rows, 1u);
  const auto* tensor = sluice_model_find(model.get(), "b");
  ASSERT_NE(tensor, nullptr);
  EXPECT_STREQ(tensor->dtype, "BF16");
  ASSERT_EQ(tensor->dimensions, 2u);
  EXPECT_EQ(tensor->shape[0], 3u);
  EXPECT_EQ(tensor->shape[1], 2u);
  EXPECT_EQ(tensor->bytes, 12u);
  EXPECT_EQ(tensor->rows, 3u);
  EXPECT_EQ(tensor->row_bytes, 4u);
  EXPECT_EQ(tensor->file_offset, 8 + header.size() + 4);
  EXPECT_EQ(tensor->arena_offset, 256u);
  EXPECT_EQ(sluice_model_arena(model.get()), 512u);
  EXPECT_EQ(sluice_model_find(model.get(), "c"), nullptr);
  EXPECT_EQ(sluice_model_tensor(model.get(), 2), nullptr);
  EXPECT_EQ(bytes_of(load(model), model, "b"), "456789abcdef");
}

TEST_F(ModelTest, LargeTensorsOfOddSizesArriveAndNothingElseIsTouched) {
  // Several reads, some of which end in the middle of a tensor.
  const std::string first = random_bytes(70'000'001), second = random_bytes(3),
                    third = random_bytes(100'000'000);
  const auto model = open_model(dir_.make_file(
      "m.safetensors", pack_tensors({{"1", first}, {"2", second}, {"3", third}, {"4", ""}})));
  const auto arena = load(model, 77);
  const auto loaded = arena.substr(77);
  EXPECT_EQ(arena.substr(0, 77), std::string(77, '\0'));
  EXPECT_TRUE(bytes_of(loaded, model, "1") == first);
  EXPECT_TRUE(bytes_of(loaded, model, "2") == second);
  EXPECT_TRUE(bytes_of(loaded, model, "3") == third);
  EXPECT_EQ(bytes_of(loaded, model, "4"), "");
  const auto end = sluice_model_find(model.get(), "2")->arena_offset + 3;
  EXPECT_EQ(loaded.substr(end, 253), std::string(253, '\0'));
}

class IndexTest : public ModelTest {
 protected:
  IndexTest() {
    for (int file = 0; file < 6; ++file) {
      std::vector<std::pair<std::string, std::string>> tensors;
      for (int i = 0; i < 3; ++i) {
        const std::string name = "layer." + std::to_string(file) + "." + std::to_string(i);
        tensors.emplace_back(name, random_bytes(100'000 + static_cast<std::size_t>(file * 7 + i)));
        all_.push_back(tensors.back());
        // The last tensor of each file is not in the index.
        if (i == 2) all_.pop_back();
        if (i < 2)
          map_ += (map_.empty() ? "" : ",") + ('"' + name) + "\":\"f" + std::to_string(file) + "\"";
      }
      dir_.make_file("f" + std::to_string(file), pack_tensors(tensors));
    }
    dir_.make_file("model.safetensors.index.json",
                   R"({"metadata":{"x":[1,{"weight_map":2}]},"weight_map":{)" + map_ + "}}");
  }

  std::vector<std::pair<std::string, std::string>> all_;
  std::string map_;
};

TEST_F(IndexTest, LoadsAllFilesIntoOneArena) {
  const auto model = open_model(dir_.path());
  ASSERT_EQ(sluice_model_count(model.get()), all_.size());
  const auto arena = load(model);
  for (const auto& [name, bytes] : all_) EXPECT_TRUE(bytes_of(arena, model, name.c_str()) == bytes);
}

TEST_F(IndexTest, PartIsAModelWithItsOwnArena) {
  auto model = open_model(dir_ / "model.safetensors.index.json");
  const auto part = test::select(model, {"layer.4.0", "layer.1.1"});
  model.reset();  // the part keeps the files open
  ASSERT_EQ(sluice_model_count(part.get()), 2u);
  EXPECT_EQ(sluice_model_find(part.get(), "layer.1.1")->arena_offset, 0u);
  const auto arena = load(part);
  EXPECT_TRUE(bytes_of(arena, part, "layer.4.0") == all_[8].second);
  EXPECT_TRUE(bytes_of(arena, part, "layer.1.1") == all_[3].second);
  sluice_model* other = nullptr;
  const char* const missing[] = {"layer.4.0", "none"};
  EXPECT_EQ(sluice_model_select(part.get(), missing, 2, &other), -ENOENT);
  EXPECT_STREQ(sluice_error(), "there is no tensor 'none'");
  const char* const twice[] = {"layer.4.0", "layer.4.0"};
  EXPECT_EQ(sluice_model_select(part.get(), twice, 2, &other), -EINVAL);
}

TEST_F(IndexTest, WrongIndexIsRefused) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"{", "parse error"},
      {"[]", "weight_map is missing"},
      {"5", "weight_map is missing"},
      {R"({"weight_map":[]})", "weight_map is missing"},
      {R"({"weight_map":5})", "weight_map is missing"},
      {R"({"metadata":{"weight_map":{}}})", "weight_map is missing"},
      {R"({"weight_map":{"a":"../f0"}})", "'a': '../f0' is not the name of a file"},
      {R"({"weight_map":{"a":".."}})", "is not the name of a file"},
      {R"({"weight_map":{"a":""}})", "is not the name of a file"},
      {R"({"weight_map":{"a":"f0\u0000"}})", "is not the name of a file"},
      {R"({"weight_map":{"a":5}})", "'a': this is not the name of a file"},
      {R"({"weight_map":{"a":{}}})", "is not the name of a file"},
      {R"({"weight_map":{"a":"f0","a":"f1"}})", "'a' occurs twice"},
      {R"({"weight_map":{},"weight_map":{}})", "'weight_map' occurs twice"},
      {R"({"weight_map":{"a":"f0"}})", "'a' is not in f0"},
  };
  for (const auto& each : cases) {
    const auto said = error_of(dir_.make_file("wrong.json", each.text));
    EXPECT_NE(said.find(each.message), said.npos) << each.text << ": " << said;
    EXPECT_NE(said.find("wrong.json"), said.npos) << said;
  }
  dir_.make_file("none.json", R"({"weight_map":{"a":"f9"}})");
  EXPECT_NE(error_of(dir_ / "none.json", ENOENT).find("f9"), std::string::npos);
}

TEST_F(ModelTest, WrongHeadersAreRefusedWithAReason) {
  const std::string good = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::string f32 = R"("F32")", eight(8, 'x');
  std::string deep = "{";
  for (int i = 0; i < 100'000; ++i) deep += R"("a":{)";
  const struct {
    std::string content, message;
  } cases[] = {
      {"", "at least 8 bytes, this one 0"},
      {"1234567", "at least 8 bytes"},
      {std::string(8, '\xff') + "{}", "is more than the 100000000"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "only 2 follow"},
      {pack(""), "does not begin with '{'"},
      {pack(" {}"), "does not begin with '{'"},
      {pack("[]"), "does not begin with '{'"},
      {pack("{"), "from byte 8 on"},
      {pack("{} {}"), "from byte 8 on"},
      {pack("{\"a\": \xff}"), "from byte 8 on"},
      {pack(deep), "must be an object with dtype"},
      {pack(R"({"a":)" + std::string(5000, '9') + "}"), "from byte 8 on"},
      {pack("{" + good + "," + good + "}", eight), "'a' occurs twice"},
      {pack(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "'dtype' occurs twice"},
      {pack(R"({"a\u0000b":{}})"), "the name contains a zero byte"},
      {pack(R"({"a":5})"), "tensor 'a': must be an object"},
      {pack(R"({"a":[]})"), "must be an object"},
      {pack(R"({"a":{}})"), "must be an object with"},
      {pack(R"({"a":{"dtype":"F32"}})"), "must be an object with"},
      {pack(R"({"a":{"more":1}})"), "must be an object with"},
      {pack(one(R"("F31")", "[2]", "[0,8]"), eight), "dtype 'F31' is unknown"},
      {pack(one(R"(["F32"])", "[2]", "[0,8]"), eight), "dtype must be a string"},
      {pack(one(f32, "2", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[2.0]", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[true,2]", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[-2]", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[[2]]", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, R"(["2"])", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[18446744073709551616]", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[9223372036854775808]", "[0,8]"), eight), "the shape must be"},
      {pack(one(f32, "[4611686018427387904,4,4,4]", "[0,8]"), eight), "is not 8 bytes"},
      {pack(one(f32, "[1" + std::string(200, ',') + "]", "[0,8]"), eight), "from byte 8 on"},
      {pack(one(f32, "[3]", "[0,8]"), eight), "F32 of shape [3] is not 8 bytes"},
      {pack(one(R"("F4")", "[17]", "[0,8]"), eight), "F4 of shape [17] is not 8 bytes"},
      {pack(one(f32, "[2]", "[0,8,9]"), eight), "two whole numbers"},
      {pack(one(f32, "[2]", "[0]"), eight), "two whole numbers"},
      {pack(one(f32, "[2]", "[-8,0]"), eight), "two whole numbers"},
      {pack(one(f32, "[2]", "[0,8.0]"), eight), "two whole numbers"},
      {pack(one(f32, "[2]", "{}"), eight), "two whole numbers"},
      {pack(one(f32, "[2]", "[8,0]"), eight), "not within the 8 bytes"},
      {pack(one(f32, "[2]", "[0,8]"), "1234567"), "not within the 7 bytes"},
      {pack(one(f32, "[2]", "[0,9223372036854775807]"), eight), "not within"},
      {pack("{" + good + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            "0123456789ab"),
       "'b' overlaps the one before it"},
      {pack(one(f32, "[2]", "[1,9]"), "012345678"), "leaves a gap before it"},
      {pack("{" + good + "}", "012345678"), "the tensors end at byte"},
      {pack(R"({"__metadata__":5})"), "__metadata__ must be an object of strings"},
      {pack(R"({"__metadata__":{"a":5}})"), "__metadata__ must be"},
      {pack(R"({"__metadata__":{"a":{}}})"), "__metadata__ must be"},
      {pack(R"({"__metadata__":{"a":"1","a":"2"}})"), "'a' occurs twice"},
  };
  for (const auto& each : cases) {
    const auto said = error_of(dir_.make_file("wrong.safetensors", each.content));
    EXPECT_NE(said.find(each.message), said.npos) << each.message << ", but: " << said;
    EXPECT_NE(said.find("wrong.safetensors: "), said.npos) << said;
  }
}

TEST_F(ModelTest, TooManyDimensionsAreRefused) {
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  const auto path =
      dir_.make_file("m", pack(R"({"a":{"dtype":"U8","shape":[)" + shape + R"(]}})", "x"));
  EXPECT_NE(error_of(path).find("more than 64 dimensions"), std::string::npos);
}

// Any bytes give either a consistent model or EUCLEAN.
TEST_F(ModelTest, AnyByteOfAFileMayBeWrongWithoutACrash) {
  const auto good = pack_tensors({{"first", "0123456789"}, {"second", ""}, {"third", "abc"}});
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    auto bad = good;
    for (std::size_t i = 0; i <= below(3); ++i)
      bad[below(bad.size())] = static_cast<char>(random());
    if (below(3) == 0) bad.resize(below(bad.size()));
    sluice_model* opened = nullptr;
    const int code = sluice_model_open(dir_.make_file("m", bad).c_str(), &opened);
    const ModelHandle model(opened);
    if (code != 0) {
      ASSERT_EQ(code, -EUCLEAN) << sluice_error();
      ++refused;
      continue;
    }
    for (std::size_t i = 0; i < sluice_model_count(model.get()); ++i) {
      const auto* tensor = sluice_model_tensor(model.get(), i);
      ASSERT_LE(tensor->file_offset + tensor->bytes, bad.size());
      ASSERT_LE(tensor->arena_offset + tensor->bytes, sluice_model_arena(model.get()));
    }
    load(model);
  }
  EXPECT_GT(refused, 1500);
  EXPECT_LT(refused, 3000);
}

TEST_F(ModelTest, MissingFilesAndFoldersAreErrors) {
  error_of(dir_ / "none", ENOENT);
  EXPECT_NE(error_of(dir_.path(), ENOENT).find("model.safetensors"), std::string::npos);
  error_of(dir_ / "none.json", ENOENT);
}

TEST_F(ModelTest, ErrorNamesAFileThatBecameShorter) {
  const auto path = dir_.make_file("m", pack_tensors({{"a", random_bytes(100'000)}}));
  const auto model = open_model(path);
  ASSERT_EQ(::truncate(path.c_str(), 50'000), 0);
  std::string arena(sluice_model_arena(model.get()), '\0');
  const auto buffer = register_memory(arena.data(), arena.size());
  EXPECT_EQ(sluice_model_load(model.get(), buffer.get(), 0, nullptr, nullptr, nullptr), -EUCLEAN);
  EXPECT_NE(std::string(sluice_error()).find("became shorter while it was read"),
            std::string::npos);
}

TEST_F(ModelTest, TooSmallBufferIsRefused) {
  const auto model = open_model(dir_.make_file("m", pack_tensors({{"a", "123"}})));
  std::string arena(256, '\0');
  const auto buffer = register_memory(arena.data(), arena.size());
  EXPECT_EQ(sluice_model_load(model.get(), buffer.get(), 1, nullptr, nullptr, nullptr), -ERANGE);
  EXPECT_EQ(sluice_model_load(model.get(), buffer.get(), 257, nullptr, nullptr, nullptr), -ERANGE);
  EXPECT_EQ(sluice_model_load(model.get(), buffer.get(), 0, nullptr, nullptr, nullptr), 3);
}

TEST_F(ModelTest, EmptyModelNeedsNoMemory) {
  const auto model = open_model(dir_.make_file("m", pack("{}")));
  EXPECT_EQ(sluice_model_arena(model.get()), 0u);
  EXPECT_EQ(sluice_model_load(model.get(), nullptr, 0, nullptr, nullptr, nullptr), 0);
}

TEST_F(ModelTest, ProgressIsCalledAndCanCancelTheLoad) {
  const auto model =
      open_model(dir_.make_file("m", pack_tensors({{"a", random_bytes(300'000'000)}})));
  std::string arena(sluice_model_arena(model.get()), '\0');
  const auto buffer = register_memory(arena.data(), arena.size());
  struct Seen {
    std::vector<std::uint64_t> done;
    bool stop = false;
  } seen;
  const auto progress = [](void* user, std::uint64_t done, std::uint64_t total) {
    auto& all = *static_cast<Seen*>(user);
    EXPECT_EQ(total, 300'000'000u);
    EXPECT_TRUE(all.done.empty() || done > all.done.back());
    all.done.push_back(done);
    return all.stop ? 1 : 0;
  };
  EXPECT_EQ(sluice_model_load(model.get(), buffer.get(), 0, progress, &seen, nullptr), 300'000'000);
  ASSERT_FALSE(seen.done.empty());
  EXPECT_EQ(seen.done.back(), 300'000'000u);
  seen = {{}, true};
  EXPECT_EQ(sluice_model_load(model.get(), buffer.get(), 0, progress, &seen, nullptr), -ECANCELED);
}

TEST_F(ModelTest, RangesDescribeSeveralKindsOfDataInOneFile) {
  const auto content = random_bytes(10'000);
  const auto path = dir_.make_file("data", content);
  const struct sluice_range ranges[] = {
      {path.c_str(), "vectors", 1000, 16, 500},
      {path.c_str(), "ids", 0, 8, 100},
      {path.c_str(), "rest", 9001, 0, 0},
      {path.c_str(), "whole", 0, 1000, 0},
  };
  sluice_model* opened = nullptr;
  ASSERT_EQ(sluice_model_open_ranges(ranges, 4, &opened), 0) << sluice_error();
  const ModelHandle model(opened);
  const auto* vectors = sluice_model_find(opened, "vectors");
  EXPECT_EQ(vectors->rows, 500u);
  EXPECT_EQ(vectors->row_bytes, 16u);
  EXPECT_EQ(sluice_model_find(opened, "rest")->bytes, 999u);
  EXPECT_EQ(sluice_model_find(opened, "whole")->rows, 10u);
  const auto arena = load(model);
  EXPECT_TRUE(bytes_of(arena, model, "vectors") == content.substr(1000, 8000));
  EXPECT_TRUE(bytes_of(arena, model, "ids") == content.substr(0, 800));
  EXPECT_TRUE(bytes_of(arena, model, "whole") == content);

  std::string memory(1000, '\0');
  const auto buffer = register_memory(memory.data(), memory.size());
  EXPECT_EQ(sluice_tensor_read(vectors, 490, 10, buffer.get(), 5, nullptr), 160) << sluice_error();
  EXPECT_TRUE(memory.substr(5, 160) == content.substr(1000 + 490 * 16, 160));
  EXPECT_EQ(sluice_tensor_read(vectors, 500, 0, buffer.get(), 0, nullptr), 0);
  EXPECT_EQ(sluice_tensor_read(vectors, 490, 11, buffer.get(), 0, nullptr), -ERANGE);
  EXPECT_STREQ(sluice_error(), "read rows 490 to 501: 'vectors' has 500");
  EXPECT_EQ(sluice_tensor_read(vectors, UINT64_MAX, 2, buffer.get(), 0, nullptr), -ERANGE);
  EXPECT_EQ(sluice_tensor_read(vectors, 0, 100, buffer.get(), 0, nullptr), -ERANGE);
  EXPECT_NE(std::string(sluice_error()).find("the range exceeds the buffer"), std::string::npos);
}

TEST_F(ModelTest, RangesMaySpanFilesAndWrongOnesAreRefused) {
  const auto one = dir_.make_file("1", "first"), two = dir_.make_file("2", "second");
  sluice_model* opened = nullptr;
  const struct sluice_range files[] = {{two.c_str(), nullptr, 0, 0, 0},
                                       {one.c_str(), nullptr, 0, 0, 0}};
  ASSERT_EQ(sluice_model_open_ranges(files, 2, &opened), 0) << sluice_error();
  const ModelHandle model(opened);
  EXPECT_EQ(bytes_of(load(model), model, one.c_str()), "first");
  EXPECT_EQ(bytes_of(load(model), model, two.c_str()), "second");

  const auto refused = [&](const struct sluice_range& range) {
    return sluice_model_open_ranges(&range, 1, &opened);
  };
  EXPECT_EQ(refused({one.c_str(), "a", 0, 2, 3}), -ERANGE);
  EXPECT_EQ(refused({one.c_str(), "a", 6, 0, 0}), -ERANGE);
  EXPECT_EQ(refused({one.c_str(), "a", UINT64_MAX, 0, 0}), -ERANGE);
  EXPECT_EQ(refused({one.c_str(), "a", 0, UINT64_MAX, UINT64_MAX}), -ERANGE);
  EXPECT_EQ(refused({nullptr, "a", 0, 0, 0}), -EINVAL);
  EXPECT_EQ(refused({"/none", "a", 0, 0, 0}), -ENOENT);
  const struct sluice_range twice[] = {{one.c_str(), "a", 0, 0, 0}, {two.c_str(), "a", 0, 0, 0}};
  EXPECT_EQ(sluice_model_open_ranges(twice, 2, &opened), -EINVAL);
}

TEST_F(ModelTest, NullArgumentsDoNotCrash) {
  sluice_model* model = nullptr;
  EXPECT_EQ(sluice_model_open(nullptr, &model), -EINVAL);
  EXPECT_EQ(sluice_model_open("x", nullptr), -EINVAL);
  EXPECT_EQ(sluice_model_open_ranges(nullptr, 1, &model), -EINVAL);
  EXPECT_EQ(sluice_model_select(nullptr, nullptr, 0, &model), -EINVAL);
  EXPECT_EQ(sluice_model_count(nullptr), 0u);
  EXPECT_EQ(sluice_model_tensor(nullptr, 0), nullptr);
  EXPECT_EQ(sluice_model_find(nullptr, "a"), nullptr);
  EXPECT_EQ(sluice_model_load(nullptr, nullptr, 0, nullptr, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(sluice_tensor_read(nullptr, 0, 0, nullptr, 0, nullptr), -EINVAL);
  EXPECT_EQ(sluice_layers_acquire(nullptr, 0), -EINVAL);
  EXPECT_EQ(sluice_layers_release(nullptr, 0), -EINVAL);
  sluice_model_close(nullptr);
  sluice_layers_close(nullptr);
}

}  // namespace
}  // namespace sluice
