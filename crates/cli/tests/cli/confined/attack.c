/*
 * The attacker of ../sandbox/attack.c inside a daemon. It begins when the daemon says that it serves, and not at its log, which
 * starts before the sandbox. With STAY the daemon lives on.
 */
#define _GNU_SOURCE
#include <unistd.h>
#undef STDERR_FILENO
#define STDERR_FILENO (-1)
#ifdef STAY
#define _exit(code) ((void)(code))
#endif
#include "../sandbox/attack.c"
