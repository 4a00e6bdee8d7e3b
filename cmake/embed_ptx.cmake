# cmake -DKERNEL=NAME -DPTX=FILE -DHEADER=FILE -P embed_ptx.cmake: makes a C++ header of a file of PTX. It has one string,
# such as kGatherPtx for the kernel `gather`.
#
# The version is that of the nvcc that wrote it; older drivers refuse a newer one than their own. Nothing in our kernels
# needs more than that of 2019 (CUDA 10.2).
file(READ "${PTX}" text)
string(REGEX REPLACE "\n\\.version [0-9.]+" "\n.version 6.5" text "${text}")
string(SUBSTRING ${KERNEL} 0 1 first)
string(SUBSTRING ${KERNEL} 1 -1 others)
string(TOUPPER ${first} first)
file(WRITE "${HEADER}" "// Made of ${PTX} by cmake/embed_ptx.cmake.
#pragma once

namespace sluice {
inline constexpr const char* k${first}${others}Ptx = R\"ptx(${text})ptx\";
}  // namespace sluice
")
