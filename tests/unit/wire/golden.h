/* golden.h: bytes as they were released, in tests/wire. */
#ifndef HVD_TESTS_GOLDEN_H
#define HVD_TESTS_GOLDEN_H

#include "check.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GOLDEN_DIR                      /* of the build */
#define GOLDEN_DIR "."
#endif

/* The file must hold these bytes; WRITE_GOLDEN=1 makes one that is missing. */
static inline void check_golden(const char *name, const uint8_t *now, size_t now_n)
{
    static uint8_t golden[1 << 16];
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    f = fopen(path, "rb");
    if (f == NULL && getenv("WRITE_GOLDEN") != NULL) {
        f = fopen(path, "w+b");
        CHECK(f != NULL && fwrite(now, 1, now_n, f) == now_n);
        rewind(f);
    }
    if (f == NULL)
        check_fail(__FILE__, __LINE__, "%s: no such file", path);
    CHECK_EQ(fread(golden, 1, sizeof golden, f), now_n);
    CHECK(memcmp(golden, now, now_n) == 0);
    fclose(f);
}

#endif
