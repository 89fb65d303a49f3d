/* Preloaded into mdadm --create: makes what it writes a function of its arguments.
 * Time stands still, random bytes count up from zero at each opening of /dev/urandom (the
 * recipe binds a file over it), and adding a disk to the array fails, so that the kernel never
 * updates the superblocks mdadm has just written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <time.h>
#include <linux/major.h>
#include <sys/ioctl.h>
#include <linux/raid/md_u.h>

time_t time(time_t *at)
{
	const time_t frozen = 1700000000;
	if (at)
		*at = frozen;
	return frozen;
}

int ioctl(int fd, unsigned long request, ...)
{
	static int (*real)(int, unsigned long, void *);
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (!real)
		real = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
	if (request == ADD_NEW_DISK) {
		errno = EIO;
		return -1;
	}
	return real(fd, request, arg);
}
