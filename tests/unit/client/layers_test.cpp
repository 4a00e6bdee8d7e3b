// SPDX-License-Identifier: BSD-2-Clause
// Layers through the slots of a host buffer.
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "tests/support/wait.hpp"
#include "tests/unit/client/model.hpp"

namespace sluice {
namespace {

using test::LayersHandle;
using test::ModelHandle;
using test::random_bytes;
using test::register_memory;

constexpr std::size_t kLayers = 7;

class LayersTest : public ::testing::Test {
 protected:
  LayersTest() {
    std::vector<std::pair<std::string, std::string>> tensors;
    for (std::size_t i = 0; i < kLayers; ++i) {
      contents_.push_back(random_bytes(10'000 + 300 * i));
      tensors.emplace_back(std::to_string(i), contents_.back());
    }
    path_ = dir_.make_file("m", test::pack_tensors(tensors));
    model_ = test::open_model(path_);
    for (std::size_t i = 0; i < kLayers; ++i) {
      parts_.push_back(test::select(model_, {std::to_string(i).c_str()}));
      models_.push_back(parts_.back().get());
      slot_ = std::max<std::size_t>(slot_, sluice_model_arena(models_.back()));
    }
  }

  void open(std::size_t slots, std::uint32_t flags = 0) {
    memory_.assign(100 + slots * slot_, '\0');
    buffer_ = register_memory(memory_.data(), memory_.size());
    sluice_layers* layers = nullptr;
    ASSERT_EQ(
        sluice_layers_open(models_.data(), kLayers, buffer_.get(), 100, slots, flags, &layers), 0)
        << sluice_error();
    layers_.reset(layers);
  }

  // Acquires the layer; true if its content is correct.
  bool comes(std::size_t layer) {
    const auto at = sluice_layers_acquire(layers_.get(), layer);
    EXPECT_GE(at, 100) << sluice_error();
    return at >= 100 && memory_.compare(static_cast<std::size_t>(at), contents_[layer].size(),
                                        contents_[layer]) == 0;
  }
  int release(std::size_t layer) { return sluice_layers_release(layers_.get(), layer); }

  test::TempDir dir_;
  std::string path_;
  std::vector<std::string> contents_;
  ModelHandle model_;
  std::vector<ModelHandle> parts_;
  std::vector<sluice_model*> models_;
  std::size_t slot_ = 0;
  std::string memory_;
  test::BufferHandle buffer_;
  LayersHandle layers_;  // destroyed first
};

TEST_F(LayersTest, LayersComeInOrderThroughFewSlots) {
  for (const std::size_t slots : {1u, 2u, 3u, 20u}) {
    open(slots);
    for (std::size_t i = 0; i < kLayers; ++i) {
      EXPECT_TRUE(comes(i)) << i << " with " << slots;
      EXPECT_EQ(release(i), 0);
    }
    layers_.reset();
  }
}

TEST_F(LayersTest, LayersRepeatWithAgain) {
  open(3, SLUICE_LAYERS_AGAIN);
  for (std::size_t i = 0; i < 5 * kLayers; ++i) {
    EXPECT_TRUE(comes(i % kLayers)) << i;
    EXPECT_EQ(release(i % kLayers), 0);
  }
}

TEST_F(LayersTest, LayersCanBeAcquiredInAnyOrder) {
  open(2);
  for (const std::size_t i : {6u, 0u, 3u, 3u, 2u, 6u, 1u}) {
    EXPECT_TRUE(comes(i)) << i;
    EXPECT_EQ(release(i), 0);
  }
}

TEST_F(LayersTest, NextLayerIsLoadedInAdvance) {
  open(2);
  EXPECT_TRUE(comes(0));
  // The layer is not acquired, so a plain read would be a data race. Here the kernel reads it.
  const auto is_there = [&] {
    std::string seen(memory_.size(), '\0');
    const iovec to{seen.data(), seen.size()}, from{memory_.data(), memory_.size()};
    return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == std::ssize(seen) &&
           seen.find(contents_[1]) != std::string::npos;
  };
  EXPECT_TRUE(test::eventually(is_there));
}

TEST_F(LayersTest, AcquiredLayerDoesNotChange) {
  open(3);
  EXPECT_TRUE(comes(0));
  for (std::size_t i = 1; i < kLayers; ++i) {
    EXPECT_TRUE(comes(i));
    EXPECT_EQ(release(i), 0);
  }
  const auto at =
      std::search(memory_.begin(), memory_.end(), contents_[0].begin(), contents_[0].end());
  EXPECT_NE(at, memory_.end());
  EXPECT_EQ(release(0), 0);
}

// Fewer slots are free than layers are needed.
TEST_F(LayersTest, LayersComeInAnyOrderWhileOneIsAcquired) {
  open(2, SLUICE_LAYERS_AGAIN);
  EXPECT_TRUE(comes(0));
  for (const std::size_t i : {3u, 2u, 1u, 6u, 5u, 6u}) {
    EXPECT_TRUE(comes(i)) << i;
    EXPECT_EQ(release(i), 0);
  }
}

TEST_F(LayersTest, ThreadsWithDistantLayersBothGetTheirs) {
  open(2);
  const auto again_and_again = [&](std::size_t layer) {
    for (int i = 0; i < 200; ++i) {
      EXPECT_TRUE(comes(layer)) << layer;
      EXPECT_EQ(release(layer), 0);
    }
  };
  std::thread other([&] { again_and_again(5); });
  again_and_again(0);
  other.join();
}

TEST_F(LayersTest, MisuseIsRefusedWithoutBlocking) {
  open(2);
  EXPECT_EQ(release(0), -EINVAL);
  EXPECT_TRUE(comes(0));
  EXPECT_EQ(sluice_layers_acquire(layers_.get(), 0), -EBUSY);
  EXPECT_TRUE(comes(1));
  EXPECT_EQ(sluice_layers_acquire(layers_.get(), 2), -EBUSY);
  EXPECT_EQ(sluice_layers_acquire(layers_.get(), kLayers), -EINVAL);
  EXPECT_EQ(release(1), 0);
  EXPECT_EQ(release(1), -EINVAL);
  EXPECT_TRUE(comes(2));
  EXPECT_EQ(sluice_layers_release_stream(layers_.get(), 2, nullptr), -ENODEV);
  sluice_layers* none = nullptr;
  EXPECT_EQ(sluice_layers_open(models_.data(), 0, buffer_.get(), 0, 1, 0, &none), -EINVAL);
  EXPECT_EQ(sluice_layers_open(models_.data(), 1, buffer_.get(), 0, 0, 0, &none), -EINVAL);
  EXPECT_EQ(sluice_layers_open(models_.data(), 1, buffer_.get(), 0, 1, 2, &none), -EINVAL);
  EXPECT_EQ(sluice_layers_open(models_.data(), kLayers, buffer_.get(), 101, 2, 0, &none), -ERANGE);
  EXPECT_EQ(sluice_layers_open(models_.data(), kLayers, buffer_.get(), 0, SIZE_MAX, 0, &none),
            -ERANGE);
}

TEST_F(LayersTest, AcquireReturnsTheLoadErrorAndTheNextCallLoadsAgain) {
  const auto content = dir_.make_file("copy", "");
  ASSERT_EQ(::rename(path_.c_str(), content.c_str()), 0);
  model_ = test::open_model(content);
  for (std::size_t i = 0; i < kLayers; ++i) {
    parts_[i] = test::select(model_, {std::to_string(i).c_str()});
    models_[i] = parts_[i].get();
  }
  const auto* last = sluice_model_find(model_.get(), "6");
  const auto size = last->file_offset + last->bytes;
  ASSERT_EQ(::truncate(content.c_str(), static_cast<off_t>(last->file_offset)), 0);
  open(2);
  EXPECT_TRUE(comes(5));
  EXPECT_EQ(release(5), 0);
  EXPECT_EQ(sluice_layers_acquire(layers_.get(), 6), -EUCLEAN);
  EXPECT_NE(std::string(sluice_error()).find("became shorter while it was read"),
            std::string::npos);
  ASSERT_EQ(::truncate(content.c_str(), static_cast<off_t>(size)), 0);
  // An attempt that began before the file was long enough again may still fail.
  EXPECT_TRUE(test::eventually([&] { return sluice_layers_acquire(layers_.get(), 6) >= 0; }));
}

TEST_F(LayersTest, LayersCanBeClosedAtAnyTime) {
  for (std::size_t i = 0; i < 20; ++i) {
    open(3, SLUICE_LAYERS_AGAIN);
    for (std::size_t k = 0; k < i % 4; ++k) EXPECT_TRUE(comes(k)) << i;
    layers_.reset();
  }
}

}  // namespace
}  // namespace sluice
