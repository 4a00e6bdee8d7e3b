#include "gpu/route_cufile.hpp"
namespace sluice {
CuFiles::CuFiles(bool) {}
CuFiles::~CuFiles() = default;
CuFiles::Verdict CuFiles::judge(int, const FileId&, Device&) { return {}; }
bool CuFiles::may_be_direct(Device&) { return false; }
Result<std::uint64_t> CuFiles::read(int, const FileId&, Memory&, std::span<const Segment>) {
  return Error(EOPNOTSUPP, "x");
}
void CuFiles::forget(const FileId&) {}
}  // namespace sluice
