// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/real.hpp"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/cufile_api.hpp"

namespace sluice::dropin {
namespace {

constexpr const char* kVariable = "SLUICE_CUFILE_REAL";
// dlopen() of this name would return our own library, because the loader compares SONAMEs.
constexpr const char* kName = "libcufile.so.0";

Mutex g_mutex;                          // held during the search
std::atomic<void*> g_library{nullptr};  // set once, under the lock
unsigned long long g_searched_at = 0;   // number of libraries loaded by the time of the last search
thread_local bool t_is_searching = false;  // a library that is being loaded may call us

struct Loaded {
  std::vector<std::string> paths;
  unsigned long long ever = 0;  // loaded since the start, including those unloaded again
};

int note_loaded(dl_phdr_info* info, std::size_t size, void* user) {
  auto& loaded = *static_cast<Loaded*>(user);
  if (info->dlpi_name != nullptr && *info->dlpi_name != '\0') {
    loaded.paths.emplace_back(info->dlpi_name);
  }
  if (size >= offsetof(dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds) {
    loaded.ever = info->dlpi_adds;
  }
  return 0;
}

// Null if the file does not exist, is not libcufile, or is ours.
void* try_open(const std::string& path) {
  void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  if (::dlsym(library, kDropInFunction) == nullptr && ::dlsym(library, "cuFileRead") != nullptr) {
    return library;
  }
  ::dlclose(library);
  return nullptr;
}

std::vector<std::string> files_like(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

// For "/x/site-packages/torch/lib/libtorch.so" it returns "/x/site-packages/"; for other paths it
// is empty.
std::string packages_of(const std::string& path) {
  for (const char* folder : {"/site-packages/", "/dist-packages/"}) {
    const auto at = path.find(folder);
    if (at != std::string::npos) return path.substr(0, at) + folder;
  }
  return {};
}

// Paths to try, in order.
std::vector<std::string> patterns(const Loaded& loaded) {
  std::vector<std::string> all;
  for (const auto& path : loaded.paths) {
    // Packages that contain the library put a checksum into its name.
    if (path.find("/libcufile.so") != std::string::npos ||
        path.find("/libcufile-") != std::string::npos) {
      all.push_back(path);
    }
  }
  std::set<std::string> packages;
  for (const auto& path : loaded.paths) {
    const std::string folder = packages_of(path);
    if (folder.empty() || !packages.insert(folder).second) continue;
    all.push_back(folder + "nvidia/*/lib/" + kName);
  }
  const auto add_folders = [&](const std::string& folders) {
    for (std::size_t begin = 0; begin < folders.size();) {
      const auto end = std::min(folders.find(':', begin), folders.size());
      if (end > begin) all.push_back(folders.substr(begin, end - begin) + "/" + kName);
      begin = end + 1;
    }
  };
  if (const char* path = ::secure_getenv("LD_LIBRARY_PATH")) add_folders(path);
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"}) {
    const char* root = ::secure_getenv(variable);
    if (root == nullptr || *root == '\0') continue;
    for (const char* folder : {"/lib64/", "/lib/", "/targets/*-linux/lib/"}) {
      all.push_back(std::string(root) + folder + kName);
    }
  }
  for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/targets/*-linux/lib/",
                             "/usr/local/cuda-*/lib64/", "/usr/lib/*-linux-gnu/", "/usr/lib64/",
                             "/opt/cuda/lib64/", "/usr/lib/"}) {
    all.push_back(std::string(folder) + kName);
  }
  return all;
}

void* search(const Loaded& loaded) {
  if (const char* path = ::secure_getenv(kVariable); path != nullptr && *path != '\0') {
    void* library = try_open(path);
    static bool s_said = false;
    if (library == nullptr && !s_said) {
      s_said = true;
      std::fprintf(stderr, "sluice: %s=%s is not NVIDIA's libcufile\n", kVariable, path);
    }
    return library;
  }
  for (const auto& pattern : patterns(loaded)) {
    for (const auto& path : files_like(pattern)) {
      if (void* library = try_open(path)) return library;
    }
  }
  // The loader's cache, by the name that compilers use, which is not our SONAME.
  return try_open("libcufile.so");
}

}  // namespace

thread_local int Real::t_calls = 0;

void* Real::library() {
  if (void* library = g_library.load(std::memory_order_acquire)) return library;
  if (t_is_searching) return nullptr;
  const MutexLock lock(g_mutex);
  if (void* library = g_library.load(std::memory_order_acquire)) return library;
  Loaded loaded;
  ::dl_iterate_phdr(note_loaded, &loaded);
  if (loaded.ever == g_searched_at && loaded.ever != 0) return nullptr;
  t_is_searching = true;
  void* library = search(loaded);
  t_is_searching = false;
  // The search itself may have loaded libraries.
  Loaded after;
  ::dl_iterate_phdr(note_loaded, &after);
  g_searched_at = after.ever;
  g_library.store(library, std::memory_order_release);
  return library;
}

void Real::report_missing(const char* path) {
  static std::atomic<bool> s_said{false};
  if (s_said.exchange(true)) return;
  std::fprintf(
      stderr,
      "sluice: %s is not on a Sluice mount, and NVIDIA's libcufile, which should serve it, "
      "was not found; set %s=/path/to/libcufile.so.0\n",
      path, kVariable);
}

void* find_in_real(const char* name) {
  void* library = Real::library();
  return library != nullptr ? ::dlsym(library, name) : nullptr;
}

}  // namespace sluice::dropin
