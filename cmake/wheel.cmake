# For SLUICE_WHEEL: libsluice alone, in one file that needs only the C library, so that it also runs beside other builds of the
# libraries that we use. They are compiled in from their headers, which are the same for every architecture.
find_package(Threads REQUIRED)
foreach(header spdlog/spdlog.h fmt/format.h nlohmann/json.hpp xxhash.h)
  if(NOT EXISTS /usr/include/${header})
    message(FATAL_ERROR "/usr/include/${header} was not found. Run tools/setup.sh: it installs what Sluice needs.")
  endif()
endforeach()
add_library(spdlog::spdlog INTERFACE IMPORTED)
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
add_library(PkgConfig::XXHASH INTERFACE IMPORTED)
add_library(Boost::filesystem INTERFACE IMPORTED)  # libsluice does not use it
add_link_options(-static-libstdc++ -static-libgcc -Wl,-s)
