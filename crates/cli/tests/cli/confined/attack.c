/*
 * The attacker of ../sandbox/attack.c inside a daemon. It begins when the daemon says that it serves, and not at its log, which
 * starts before the sandbox. With STAY the daemon lives on.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>
#undef STDERR_FILENO
#define STDERR_FILENO (-1)
#ifdef STAY
static pid_t attacked;
__attribute__((constructor)) static void note(void)
{
	attacked = getpid();
}
/* A child ends. */
#define _exit(code) (getpid() == attacked ? (void)(code) : _Exit(code))
#endif
#include "../sandbox/attack.c"
