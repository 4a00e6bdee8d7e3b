/* SPDX-License-Identifier: BSD-2-Clause
 *
 * The header that programs include for 3FS's GPU functions. */
#include "hf3fs_usrbio.h"
