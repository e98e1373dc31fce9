/* port_owner.c: /proc/net/tcp gives the socket's number, /proc/PID/fd who holds it. */
#include "rendezvous/port_owner.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTEN 0x0a                     /* TCP_LISTEN in the kernel's table */

/* The inode of the socket that listens on `port`, 0: none. */
static unsigned long find_inode(const char *table, uint16_t port)
{
    FILE *f = fopen(table, "re");
    unsigned long inode = 0;
    char line[512];

    if (f == NULL)
        return 0;
    while (inode == 0 && fgets(line, sizeof line, f) != NULL) {
        unsigned local, state;
        unsigned long number;

        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x "
                   "%*u %*u %lu", &local, &state, &number) == 3 &&
            local == port && state == LISTEN)
            inode = number;
    }
    fclose(f);
    return inode;
}

static bool holds_socket(const char *pid, const char *socket)
{
    char path[300], target[64];
    bool found = false;
    struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    dir = opendir(path);
    if (dir == NULL)
        return false;
    while (!found && (e = readdir(dir)) != NULL) {
        ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof target - 1);

        target[n > 0 ? n : 0] = '\0';
        found = strcmp(target, socket) == 0;
    }
    closedir(dir);
    return found;
}

static void read_name(const char *pid, char *name, int capacity)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/proc/%.20s/comm", pid);
    f = fopen(path, "re");
    if (f == NULL || fgets(name, capacity, f) == NULL)
        name[0] = '\0';
    name[strcspn(name, "\n")] = '\0';
    if (f != NULL)
        fclose(f);
}

void port_owner_find(uint16_t port, char text[PORT_OWNER_TEXT])
{
    unsigned long inode = find_inode("/proc/net/tcp", port);
    char socket[64], name[32];
    struct dirent *e;
    DIR *dir;

    if (inode == 0)
        inode = find_inode("/proc/net/tcp6", port);
    snprintf(text, PORT_OWNER_TEXT, "%s", inode != 0 ? "another user's process"
                                                     : "a connection that has not ended");
    dir = inode != 0 ? opendir("/proc") : NULL;
    if (dir == NULL)
        return;
    snprintf(socket, sizeof socket, "socket:[%lu]", inode);
    while ((e = readdir(dir)) != NULL) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || !holds_socket(e->d_name, socket))
            continue;
        read_name(e->d_name, name, sizeof name);
        snprintf(text, PORT_OWNER_TEXT, "process %.20s (%s)", e->d_name, name);
        break;
    }
    closedir(dir);
}
