/* secret.c: see secret.h. */
#include "base/secret.h"

#include <string.h>
#include <sys/mman.h>

void *secret_new(size_t bytes)
{
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);

    if (page == MAP_FAILED)
        return NULL;
    /* A kernel or a limit that refuses one of these does not stop the job. */
    (void)mlock(page, bytes);
    (void)madvise(page, bytes, MADV_DONTDUMP);
    (void)madvise(page, bytes, MADV_WIPEONFORK);
    return page;
}

void secret_free(void *secret, size_t bytes)
{
    if (secret == NULL)
        return;
    explicit_bzero(secret, bytes);
    munmap(secret, bytes);
}
