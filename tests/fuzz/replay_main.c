/*
 * replay_main.c: the plain main() of a fuzz target in ordinary builds.
 *
 *   fuzz_<name> PATH ...     each PATH is an input or a directory of inputs
 *
 * Runs the target on the empty input and on every file, in the order of their names, and
 * says how many there were.  Exit code 2 if there was none: an empty corpus proves nothing.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int input_count;

/* The input in a block of exactly its size, so that a sanitizer sees one byte too far. */
static uint8_t *read_file(const char *path, size_t size)
{
    uint8_t *data = malloc(size > 0 ? size : 1);
    FILE *file = fopen(path, "rb");

    if (data == NULL || file == NULL || fread(data, 1, size, file) != size) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return data;
}

static void replay_file(const char *path, size_t size)
{
    uint8_t *data = read_file(path, size);

    fprintf(stderr, "%s\n", path);      /* the last one named is the one that crashed */
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    input_count++;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay(const char *path);

static void replay_directory(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, is_visible, alphasort);

    for (int i = 0; i < count; i++) {
        char name[4096];

        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        replay(name);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}

static void replay(const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        perror(path);
        exit(2);
    }
    if (S_ISDIR(info.st_mode))
        replay_directory(path);
    else
        replay_file(path, (size_t)info.st_size);
}

int main(int argc, char **argv)
{
    uint8_t *nothing = calloc(1, 1);

    LLVMFuzzerTestOneInput(nothing, 0);
    free(nothing);
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("%d inputs\n", input_count);
    return input_count > 0 ? 0 : 2;
}
