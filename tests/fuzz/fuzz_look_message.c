/* fuzz_look_message.c: what a viewer is told; a whole view is made of it and shown. */
#include "launch/view.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct look_question q;
    struct hvd_error err;
    struct strbuf out;
    struct view v, again;

    if (size >= LOOK_QUESTION_BYTES)
        get_look_question(&q, data, &err);
    look_is_whole((const char *)data, size, &err);
    view_init(&v, 0);
    view_init(&again, 0);
    view_add(&v, (const char *)data, size, &err);
    view_add(&again, (const char *)data, size, &err);
    view_finish(&v, NULL);
    view_finish(&again, &v);
    strbuf_init(&out);
    view_add_text(&again, 80, &out);
    view_add_json(&again, &out);
    for (size_t i = 0; i < out.length; i++)
        BUG_ON((unsigned char)out.text[i] < 0x20 && out.text[i] != '\n');
    strbuf_release(&out);
    view_keep(&again, "1");
    view_release(&again);
    view_release(&v);
    return 0;
}
