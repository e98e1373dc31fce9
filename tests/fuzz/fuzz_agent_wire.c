/* fuzz_agent_wire.c: frames between launcher and agent. */
#include "launch/agent_wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_body(unsigned type, const char *body, size_t bytes)
{
    struct agent_hello hello;
    struct agent_start start;
    struct agent_job job;
    struct hvd_error err;
    const char *rest;
    uint32_t words[3];
    size_t left;

    agent_get_hello(body, bytes, &hello, &err);
    if (agent_get_start(body, bytes, &start, &err) == HVD_OK)
        for (uint32_t i = 0; i < start.arg_count; i++)
            BUG_ON(start.args[i] + strlen(start.args[i]) >= body + bytes);
    agent_start_release(&start);
    agent_get_job(body, bytes, &job, &err);
    agent_job_release(&job);
    if (agent_get_words(body, bytes, words, 3, &rest, &left, &err) == HVD_OK)
        BUG_ON(rest + left != body + bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *body;
    struct hvd_error err;
    size_t bytes, used;
    unsigned type;

    while (agent_get_frame(at, size, &type, &body, &bytes, &used, &err) == HVD_OK) {
        BUG_ON(body + bytes > at + size);
        read_body(type, body, bytes);
        at += used;
        size -= used;
    }
    return 0;
}
