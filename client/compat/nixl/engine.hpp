// SPDX-License-Identifier: BSD-2-Clause
// A backend of NIXL for transfers between files (FILE_SEG) and memory (DRAM_SEG, VRAM_SEG).
//
// Files are registered as with NIXL's POSIX backend: a descriptor in devId, or "ro:PATH" or
// "rw:PATH" in metaInfo.
//
// Threads: thread-safe. NIXL's agents lock little or nothing, depending on their configuration.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend_engine.h"
#include "base/mutex.hpp"
#include "client/compat/nixl/transfers.hpp"

namespace sluice::plugin {

class Engine final : public nixlBackendEngine {
 public:
  explicit Engine(const nixlBackendInitParams* params) : nixlBackendEngine(params) {}

  bool supportsRemote() const override { return false; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return false; }
  nixl_mem_list_t getSupportedMems() const override { return {FILE_SEG, DRAM_SEG, VRAM_SEG}; }

  nixl_status_t registerMem(const nixlBlobDesc& what, const nixl_mem_t& kind,
                            nixlBackendMD*& out) override;
  // Waits for blocks in progress. Transfers that need more of it fail with NIXL_ERR_NOT_FOUND.
  nixl_status_t deregisterMem(nixlBackendMD* metadata) override;
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override;
  nixl_status_t unloadMD(nixlBackendMD*) override { return NIXL_SUCCESS; }
  nixl_status_t connect(const std::string&) override { return NIXL_SUCCESS; }
  nixl_status_t disconnect(const std::string&) override { return NIXL_SUCCESS; }

  nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& memory,
                         const nixl_meta_dlist_t& files, const std::string& agent,
                         nixlBackendReqH*& handle, const nixl_opt_b_args_t* options) const override;
  // The lists are those of prepXfer(), and are not read again.
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& memory,
                         const nixl_meta_dlist_t& files, const std::string& agent,
                         nixlBackendReqH*& handle, const nixl_opt_b_args_t* options) const override;
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override;
  // Waits for blocks in progress, and drops the rest of the transfer.
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override;

  // Size, mode and mtime of the files whose paths are in metaInfo.
  nixl_status_t queryMem(const nixl_reg_dlist_t& files,
                         std::vector<nixl_query_resp_t>& answers) const override;

 private:
  // A descriptor list names a file by its devId only. So all registrations with one devId must be
  // of the same file, or a transfer would use the wrong one.
  struct Named {
    std::shared_ptr<Region> region;
    unsigned registrations = 0;
  };

  nixl_status_t register_file(const nixlBlobDesc& what, std::shared_ptr<Region>& out);
  nixl_status_t register_memory(const nixlBlobDesc& what, nixl_mem_t kind,
                                std::shared_ptr<Region>& out);

  mutable Queue queue_;
  Mutex mutex_;  // locked before the mutex of the queue
  std::unordered_map<std::uint64_t, Named> files_ GUARDED_BY(mutex_);  // by devId
};

}  // namespace sluice::plugin
