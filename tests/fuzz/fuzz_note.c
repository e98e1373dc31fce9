/* fuzz_note.c: a note of a watch connection, as what its kind says. */
#include "wire/note.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_verdict(const struct note *n)
{
    struct hvd_error verdict, err;

    if (get_note_verdict(&verdict, n, &err) != HVD_OK)
        return;
    BUG_ON(verdict.status == HVD_OK || strnlen(verdict.text, HVD_ERROR_TEXT) == HVD_ERROR_TEXT);
    for (const char *p = verdict.text; *p != '\0'; p++)
        BUG_ON((unsigned char)*p < 0x20);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[NOTE_HEAD + NOTE_TEXT_MAX];
    struct note n, again;
    int count = 0;

    if (size < NOTE_HEAD || get_note_bytes(data) == 0 || get_note_bytes(data) > size)
        return 0;
    get_note(&n, data);
    check_verdict(&n);
    while (get_note_left(&n, count) != -1)
        count++;
    BUG_ON(4 * (size_t)count > n.bytes);
    put_note(bytes, &n);
    BUG_ON(get_note_bytes(bytes) != note_bytes(&n));
    get_note(&again, bytes);
    BUG_ON(again.kind != n.kind || again.status != n.status || again.rank != n.rank ||
           memcmp(again.text, n.text, n.bytes) != 0);
    return 0;
}
