// SPDX-License-Identifier: BSD-2-Clause
// Linked into tests that use RocksDB. The distribution's library is not instrumented, so
// ThreadSanitizer sees its threads' accesses (through memcpy and our merge operator) but not the
// locks between them. Without ThreadSanitizer nobody calls this.
extern "C" const char* __tsan_default_suppressions();  // the sanitizer's own name for it

const char* __tsan_default_suppressions() { return "race:librocksdb\n"; }
