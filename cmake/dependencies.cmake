# Everything that comes from outside, found once. tools/setup.sh installs all of it.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

foreach(package "spdlog" "nlohmann_json;3.10" "RocksDB" "Boost;COMPONENTS;filesystem")
  find_package(${package} QUIET)
  list(GET package 0 name)
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${name} was not found (${${name}_NOT_FOUND_MESSAGE}). Run tools/setup.sh: it installs what Sluice needs.")
  endif()
endforeach()

# libfuse before 3.18 lacks what we use: passthrough, statx. tools/setup.sh builds a static one into
# .deps/fuse when the distribution's is older; its fuse3.pc then names liburing and numa as Requires, so that
# PkgConfig::FUSE3 carries them. A shared libfuse carries its own.
list(PREPEND CMAKE_PREFIX_PATH ${CMAKE_SOURCE_DIR}/.deps/fuse)
pkg_check_modules(FUSE3 QUIET IMPORTED_TARGET fuse3>=3.18)
if(NOT FUSE3_FOUND)
  message(FATAL_ERROR "libfuse 3.18 or newer was not found. Run tools/setup.sh: it builds one into .deps/fuse.")
endif()
message(STATUS "libfuse ${FUSE3_VERSION}: ${FUSE3_LINK_LIBRARIES}")

# Header-only both, and without CMake packages on some of the systems we build on.
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h)
find_path(CLI11_INCLUDE CLI/CLI.hpp)
if(NOT TOMLPLUSPLUS_INCLUDE OR NOT CLI11_INCLUDE)
  message(FATAL_ERROR "toml++ or CLI11 was not found. Run tools/setup.sh: it installs what Sluice needs.")
endif()

pkg_check_modules(XXHASH QUIET IMPORTED_TARGET libxxhash)
if(NOT XXHASH_FOUND)
  message(FATAL_ERROR "xxHash was not found. Run tools/setup.sh: it installs what Sluice needs.")
endif()
