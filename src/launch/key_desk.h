/* key_desk.h: where processes of a job ask for its key when they have lost the descriptor
 * that holds it. */
#ifndef HVD_LAUNCH_KEY_DESK_H
#define HVD_LAUNCH_KEY_DESK_H

#include "base/error.h"

#define KEY_DESK_NAME 64                /* "@...", the value of HOROVOD_KEY_SOCKET */

/* A listening socket, not blocking, that ends with this process.  Errors: HVD_SYS. */
enum hvd_status key_desk_open(char name[KEY_DESK_NAME], int *fd_p, struct hvd_error *err);

/* Answers those who have come, a few at a time.  key_fd: of hvd_key_descriptor. */
void key_desk_serve(int desk_fd, int key_fd);

#endif
