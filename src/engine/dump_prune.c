/*
 * dump_prune.c: old flight recorders go when new ones are written, so that a machine on which
 * jobs fail every day keeps the newest few.  Only folders with our name that belong to this
 * user are looked at, and of them only files with our names are removed.  Several processes
 * may do this at once: what is gone already is no error.
 */
#include "engine/dump.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct folder {
    char name[128];
    struct timespec changed;
};

static bool is_folder_of_ours(int place, const char *name, struct folder *out)
{
    int fd = openat(place, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    bool ours = fd >= 0 && strlen(name) < sizeof out->name && dump_is_ours(fd, S_IFDIR) &&
                fstat(fd, &info) == 0;

    if (ours) {
        strcpy(out->name, name);
        out->changed = info.st_mtim;
    }
    if (fd >= 0)
        close(fd);
    return ours;
}

static int newer_first(const void *a, const void *b)
{
    const struct timespec *x = &((const struct folder *)a)->changed;
    const struct timespec *y = &((const struct folder *)b)->changed;

    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? 1 : -1;
    return (x->tv_nsec < y->tv_nsec) - (x->tv_nsec > y->tv_nsec);
}

static void remove_folder(int place, const char *name)
{
    int fd = openat(place, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;

    if (dir == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(dir)) != NULL)
        if (strncmp(entry->d_name, "rank", 4) == 0)
            unlinkat(fd, entry->d_name, 0);
    closedir(dir);
    unlinkat(place, name, AT_REMOVEDIR);
}

/* The folders of ours but one; *list_p is the caller's. */
static size_t list_folders(DIR *dir, const char *but, struct folder **list_p)
{
    struct folder *list = NULL;
    size_t count = 0, capacity = 0;
    struct dirent *entry;

    while ((entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, DUMP_FOLDER, strlen(DUMP_FOLDER)) != 0 ||
            strcmp(entry->d_name, but) == 0)
            continue;
        if (count == capacity) {
            struct folder *more = realloc(list, (2 * capacity + 16) * sizeof *list);

            if (more == NULL)
                break;
            list = more;
            capacity = 2 * capacity + 16;
        }
        if (is_folder_of_ours(dirfd(dir), entry->d_name, &list[count]))
            count++;
    }
    *list_p = list;
    return count;
}

void dump_prune(const char *place, const char *folder)
{
    const char *slash = strrchr(folder, '/');
    DIR *dir = opendir(place);
    struct folder *list;
    size_t count;

    if (dir == NULL)
        return;
    count = list_folders(dir, slash != NULL ? slash + 1 : folder, &list);
    if (count > 0)
        qsort(list, count, sizeof *list, newer_first);
    for (size_t i = DUMP_FOLDERS_KEPT - 1; i < count; i++)
        remove_folder(dirfd(dir), list[i].name);
    free(list);
    closedir(dir);
}
