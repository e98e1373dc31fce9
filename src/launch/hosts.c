/*
 * hosts.c: host strings and hostfiles.  Both are treated as hostile text.
 *
 * 1. Host string: items separated by commas, blanks around an item are dropped; an item
 *    is NAME:SLOTS or [IPV6]:SLOTS.
 * 2. Hostfile: one "NAME [slots=N] [other=key ...]" per line; blank lines and the rest of
 *    a line after '#' are skipped; blanks around '=' are allowed; slots defaults to 1.
 *    NAME may also be an item of rule 1; a name with several colons is an IPv6 address.
 * 3. A name that occurs again adds its slots to its first place.
 */
#include "launch/hosts.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_LIMIT (16u << 20)

struct parser {
    struct host_list *list;
    struct hash places;                 /* name -> index + 1 in list */
    const char *origin;                 /* NULL for a host string */
    int line;
    struct hvd_error *err;
};

static bool is_name_byte(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '.' || c == '-';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

bool host_name_is_valid(const char *name, size_t bytes)
{
    if (bytes == 0 || bytes >= HVD_HOST_MAX || name[0] == '-')
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (!is_name_byte((unsigned char)name[i]) && name[i] != ':' && name[i] != '%')
            return false;
    return true;
}

static enum hvd_status refuse(struct parser *p, const char *item, size_t bytes,
                              const char *why)
{
    int shown = bytes > 64 ? 64 : (int)bytes;

    if (p->origin != NULL)
        return error_set(p->err, HVD_INVALID, -1,
                         "Invalid host input: %s line %d: '%.*s': %s", p->origin,
                         p->line, shown, item, why);
    return error_set(p->err, HVD_INVALID, -1,
                     "Invalid host input: '%.*s': %s; write name:slots, such as "
                     "localhost:2,node1:4,[::1]:2", shown, item, why);
}

static bool parse_slots(const char *text, size_t bytes, int *slots_p)
{
    long value = 0;

    if (bytes == 0)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
        if (value > HOST_SLOTS_MAX)
            return false;
    }
    *slots_p = (int)value;
    return value > 0;
}

static enum hvd_status grow(struct parser *p)
{
    struct host_list *list = p->list;
    int capacity = list->capacity == 0 ? 16 : list->capacity * 2;
    struct host *items = realloc(list->items, (size_t)capacity * sizeof *items);

    if (items == NULL)
        return error_set(p->err, HVD_NOMEM, -1, "no memory for %d hosts", capacity);
    list->items = items;
    list->capacity = capacity;
    /* The keys of the table point into the items, which have moved. */
    hash_release(&p->places);
    memset(&p->places, 0, sizeof p->places);
    for (int i = 0; i < list->count; i++)
        if (hash_put(&p->places, items[i].name, strlen(items[i].name),
                     (void *)(uintptr_t)(i + 1)) != 0)
            return error_set(p->err, HVD_NOMEM, -1, "no memory for the host table");
    return HVD_OK;
}

static enum hvd_status add(struct parser *p, const char *name, size_t bytes, int slots)
{
    uintptr_t place = (uintptr_t)hash_get(&p->places, name, bytes);
    struct host *host;

    if (place != 0) {
        host = &p->list->items[place - 1];
        if (slots > HOST_SLOTS_MAX - host->slots)
            return refuse(p, name, bytes, "too many slots");
        host->slots += slots;
        return HVD_OK;
    }
    if (p->list->count == HOSTS_MAX)
        return refuse(p, name, bytes, "more than 65536 hosts");
    if (p->list->count == p->list->capacity)
        TRY(grow(p));
    host = &p->list->items[p->list->count];
    memcpy(host->name, name, bytes);
    host->name[bytes] = '\0';
    host->slots = slots;
    if (hash_put(&p->places, host->name, bytes,
                 (void *)(uintptr_t)(p->list->count + 1)) != 0)
        return error_set(p->err, HVD_NOMEM, -1, "no memory for the host table");
    p->list->count++;
    return HVD_OK;
}

static void trim(const char **text_p, size_t *bytes_p)
{
    while (*bytes_p > 0 && is_blank((*text_p)[0]))
        (*text_p)++, (*bytes_p)--;
    while (*bytes_p > 0 && is_blank((*text_p)[*bytes_p - 1]))
        (*bytes_p)--;
}

static bool all_name_bytes(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!is_name_byte((unsigned char)name[i]))
            return false;
    return true;
}

/* "name:slots" or "[address]:slots" */
static enum hvd_status parse_item(struct parser *p, const char *item, size_t bytes)
{
    const char *name = item, *colon;
    size_t name_bytes;
    int slots;

    if (bytes > 0 && item[0] == '[') {
        const char *end = memchr(item, ']', bytes);

        if (end == NULL || end + 1 == item + bytes || end[1] != ':')
            return refuse(p, item, bytes, "an IPv6 address is written [address]:slots");
        name = item + 1;
        name_bytes = (size_t)(end - name);
        colon = end + 1;
    } else {
        colon = memrchr(item, ':', bytes);
        if (colon == NULL)
            return refuse(p, item, bytes, "the number of slots is missing");
        name_bytes = (size_t)(colon - item);
        if (!all_name_bytes(name, name_bytes))
            return refuse(p, item, bytes, "not a host name");
    }
    if (!host_name_is_valid(name, name_bytes))
        return refuse(p, item, bytes, "not a host name");
    if (!parse_slots(colon + 1, (size_t)(item + bytes - colon - 1), &slots))
        return refuse(p, item, bytes, "slots must be a number from 1 to 65536");
    return add(p, name, name_bytes, slots);
}

enum hvd_status hosts_parse(const char *text, struct host_list *list,
                            struct hvd_error *err)
{
    struct parser p = {.list = list, .err = err};
    enum hvd_status status = HVD_OK;
    const char *at = text;

    memset(list, 0, sizeof *list);
    for (;;) {
        const char *item = at;
        size_t bytes = strcspn(at, ",");

        at += bytes;
        trim(&item, &bytes);
        TRY_OUT(parse_item(&p, item, bytes));
        if (*at++ == '\0')
            break;
    }
out:
    hash_release(&p.places);
    return status;
}

/* The next word of a hostfile line; '=' is a word of its own. */
static size_t next_word(const char **at_p, const char *end)
{
    const char *at = *at_p;
    size_t bytes = 0;

    while (at < end && is_blank(*at))
        at++;
    *at_p = at;
    if (at < end && *at == '=')
        return 1;
    while (at + bytes < end && !is_blank(at[bytes]) && at[bytes] != '=')
        bytes++;
    return bytes;
}

/* The keys after the name: "slots=4 max_slots = 8"; only slots counts. */
static enum hvd_status parse_keys(struct parser *p, const char *at, const char *end,
                                  int *slots_p)
{
    for (;;) {
        size_t key_bytes = next_word(&at, end), bytes;
        const char *key = at;

        if (key_bytes == 0)
            return HVD_OK;
        at += key_bytes;
        if (next_word(&at, end) != 1 || *at != '=' || *key == '=')
            return refuse(p, key, key_bytes, "expected key=value after the host name");
        at++;
        bytes = next_word(&at, end);
        if (key_bytes == 5 && memcmp(key, "slots", 5) == 0 &&
            !parse_slots(at, bytes, slots_p))
            return refuse(p, at, bytes, "slots must be a number from 1 to 65536");
        at += bytes;
    }
}

/* "name:2" or "[address]:2" (but not "fd00::1:2", which is an address). */
static bool is_item(const char *name, size_t bytes)
{
    const char *colon = memrchr(name, ':', bytes);

    return colon != NULL && colon > name &&
           (colon[-1] == ']' || memchr(name, ':', bytes) == colon);
}

/* Its slots stand in the name; nothing may follow that says otherwise. */
static enum hvd_status parse_item_line(struct parser *p, const char *item, size_t bytes,
                                       const char *end)
{
    int slots = 0;

    TRY(parse_keys(p, item + bytes, end, &slots));
    if (slots != 0)
        return refuse(p, item, bytes, "the number of slots is given twice");
    return parse_item(p, item, bytes);
}

static enum hvd_status parse_line(struct parser *p, const char *line, size_t bytes)
{
    const char *comment = memchr(line, '#', bytes), *name = line, *end;
    size_t name_bytes;
    int slots = 1;

    if (comment != NULL)
        bytes = (size_t)(comment - line);
    end = line + bytes;
    name_bytes = next_word(&name, end);
    if (name_bytes == 0)
        return HVD_OK;
    if (is_item(name, name_bytes))
        return parse_item_line(p, name, name_bytes, end);
    if (name_bytes > 2 && name[0] == '[' && name[name_bytes - 1] == ']') {
        if (!host_name_is_valid(name + 1, name_bytes - 2))
            return refuse(p, name, name_bytes, "not a host name");
        TRY(parse_keys(p, name + name_bytes, end, &slots));
        return add(p, name + 1, name_bytes - 2, slots);
    }
    if (!host_name_is_valid(name, name_bytes))
        return refuse(p, name, name_bytes, "not a host name");
    TRY(parse_keys(p, name + name_bytes, end, &slots));
    return add(p, name, name_bytes, slots);
}

enum hvd_status hosts_parse_lines(const char *text, size_t bytes, const char *origin,
                                  struct host_list *list, struct hvd_error *err)
{
    struct parser p = {.list = list, .origin = origin, .err = err};
    enum hvd_status status = HVD_OK;
    const char *end = text + bytes;

    memset(list, 0, sizeof *list);
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline != NULL ? newline : end) - text);

        p.line++;
        TRY_OUT(parse_line(&p, text, length));
        text += length + 1;
    }
    if (list->count == 0)
        status = error_set(err, HVD_INVALID, -1, "Invalid host input: %s names no host",
                           origin);
out:
    hash_release(&p.places);
    return status;
}

static enum hvd_status read_all(int fd, const char *path, char *text, size_t bytes,
                                struct hvd_error *err)
{
    size_t used = 0;

    while (used < bytes) {
        ssize_t n = read(fd, text + used, bytes - used);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_sys(err, -1, "hostfile %s", path);
        if (n == 0)
            return error_set(err, HVD_SYS, -1, "hostfile %s became shorter", path);
        used += (size_t)n;
    }
    return HVD_OK;
}

enum hvd_status hosts_read_file(const char *path, struct host_list *list,
                                struct hvd_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum hvd_status status = HVD_OK;
    char *text = NULL;
    struct stat info;

    memset(list, 0, sizeof *list);
    if (fd < 0)
        return error_sys(err, -1, "hostfile %s", path);
    if (fstat(fd, &info) != 0) {
        status = error_sys(err, -1, "hostfile %s", path);
    } else if (!S_ISREG(info.st_mode) || info.st_size > FILE_LIMIT) {
        status = error_set(err, HVD_INVALID, -1,
                           "hostfile %s is not a file of at most 16 MB", path);
    } else {
        text = malloc((size_t)info.st_size + 1);
        if (text == NULL)
            status = error_set(err, HVD_NOMEM, -1, "no memory for %s", path);
    }
    if (status == HVD_OK)
        status = read_all(fd, path, text, (size_t)info.st_size, err);
    if (status == HVD_OK)
        status = hosts_parse_lines(text, (size_t)info.st_size, path, list, err);
    free(text);
    close(fd);
    return status;
}

void hosts_release(struct host_list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

int hosts_slot_count(const struct host_list *list)
{
    int64_t sum = 0;

    for (int i = 0; i < list->count; i++)
        sum += list->items[i].slots;
    return sum > INT32_MAX ? INT32_MAX : (int)sum;
}
