/* SPDX-License-Identifier: BSD-2-Clause
 *
 * Where programs for 3FS's GPU calls look for them. */
#include "hf3fs_usrbio.h"
