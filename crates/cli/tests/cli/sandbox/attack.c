/*
 * A parser that was taken over: preloaded into the program, this tries what an attacker would. It begins when the program first
 * writes to standard output or error, which is after it parsed its disks. A line for each attempt goes to the file ATTACK_REPORT, opened
 * before main: the name, and "ok" or the error.
 *
 * ATTACK_DIR has the files `other` (to be read and written), `victim` (to be removed), `moved` (to be renamed) and the listening
 * socket `sock`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <unistd.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif

static int report = -1;
static char directory[80];
static int done;

/* The first ring of the program, whose set-up this library has seen. */
static int ring = -1;
static struct io_uring_params ring_params;

static long (*real_syscall)(long, ...);
static ssize_t (*real_write)(int, const void *, size_t);

static void said(const char *name, long result)
{
	char line[256];
	int error = errno;
	int length = result >= 0 ? snprintf(line, sizeof line, "%s ok\n", name)
				 : snprintf(line, sizeof line, "%s %s\n", name, strerrorname_np(error));

	if (real_write(report, line, length) != length)
		_exit(99);
}

static void closed(const char *name, long fd)
{
	said(name, fd);
	if (fd >= 0)
		close(fd);
}

static const char *at(const char *name)
{
	static char path[2][100];
	static int turn;

	turn = !turn;
	snprintf(path[turn], sizeof path[turn], "%s/%s", directory, name);
	return path[turn];
}

static void files(void)
{
	/* CAP_SYS_ADMIN, effective and permitted: struct vfs_cap_data. */
	static const uint32_t capability[5] = { 0x02000001, 1 << 21 };

	closed("open-read", open(at("other"), O_RDONLY));
	closed("open-write", open(at("other"), O_WRONLY));
	closed("openat2", real_syscall(SYS_openat2, AT_FDCWD, at("other"), &(uint64_t[3]){ O_RDWR }, 24));
	closed("open-passwd", open("/etc/passwd", O_RDONLY));
	closed("open-directory", open("/", O_RDONLY | O_DIRECTORY));
	closed("open-environ", open("/proc/1/environ", O_RDONLY));
	closed("open-own-memory", open("/proc/self/mem", O_RDWR));
	closed("creat", creat(at("made"), 0600));
	closed("tmpfile", open(directory, O_TMPFILE | O_RDWR, 0600));
	said("unlink", unlink(at("victim")));
	said("rename", rename(at("moved"), at("renamed")));
	said("mkdir", mkdir(at("directory"), 0700));
	said("symlink", symlink("/etc/shadow", at("symlink")));
	said("link", link(at("other"), at("link")));
	said("mknod", mknod(at("null"), S_IFCHR | 0666, 0x103));
	said("truncate", truncate(at("other"), 3));
	said("chmod", chmod(at("other"), 0777));
	said("chown", chown(at("other"), 0, 0));
	/* Of a file that is open: the disks are. */
	said("fchmod-setuid", fchmod(report, S_ISUID | 0755));
	said("fchmod-setgid", fchmod(report, S_ISGID | 0755));
	closed("creat-setuid", open(at("program"), O_CREAT | O_WRONLY, S_ISUID | 0755));
	said("fchmodat", real_syscall(SYS_fchmodat, AT_FDCWD, at("other"), S_ISUID | 0755));
	said("fchmodat2", real_syscall(SYS_fchmodat2, AT_FDCWD, at("other"), S_ISUID | 0755, 0));
	said("fsetxattr-capability", real_syscall(SYS_fsetxattr, report, "security.capability", capability, sizeof capability, 0));
	said("times", utimensat(AT_FDCWD, at("other"), NULL, 0));
	said("setxattr", real_syscall(SYS_setxattr, at("other"), "user.mine", "1", 1, 0));
	said("chdir", chdir(directory));
}

/* Whether a child ran a program to its end. */
static void programs(void)
{
	char *const arguments[] = { "true", NULL };
	int status = -1, memory;
	pid_t child = fork();

	said("fork", child);
	if (child < 0) {
		said("execve", execve("/bin/true", arguments, NULL));
		memory = open("/bin/true", O_RDONLY);
		said("execveat", real_syscall(SYS_execveat, memory, "", arguments, NULL, AT_EMPTY_PATH));
		memory = real_syscall(SYS_memfd_create, "program", 0);
		if (real_write(memory, "#!/bin/true\n", 12) == 12)
			said("execveat-memory", real_syscall(SYS_execveat, memory, "", arguments, NULL, AT_EMPTY_PATH));
	} else if (child == 0) {
		execve("/bin/true", arguments, NULL);
		_exit(1);
	} else if (waitpid(child, &status, 0) == child) {
		errno = EPERM;
		said("execve", status == 0 ? 0 : -1);
	}
	child = real_syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (child == 0)
		_exit(0);
	said("clone-process", child);
	said("clone3", real_syscall(SYS_clone3, NULL, 0) == -1 && errno == EINVAL ? 0 : -1);
}

static void sockets(void)
{
	struct sockaddr_un place = { .sun_family = AF_UNIX };
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int pair = socket(AF_UNIX, SOCK_STREAM, 0), internet = socket(AF_INET, SOCK_STREAM, 0);

	said("socket-unix", pair);
	closed("socket-unix-datagram", socket(AF_UNIX, SOCK_DGRAM, 0));
	said("socket-inet", internet);
	closed("socket-udp", socket(AF_INET, SOCK_DGRAM, 0));
	closed("socket-netlink", socket(AF_NETLINK, SOCK_RAW, 0));
	snprintf(place.sun_path, sizeof place.sun_path, "%s/sock", directory);
	said("connect-unix", connect(pair, (struct sockaddr *)&place, sizeof place));
	snprintf(place.sun_path, sizeof place.sun_path, "%s/mine", directory);
	close(pair);
	pair = socket(AF_UNIX, SOCK_STREAM, 0);
	said("bind-unix", bind(pair, (struct sockaddr *)&place, sizeof place));
	said("bind-inet", bind(internet, (struct sockaddr *)&here, sizeof here));
	/* Whatever the socket, the address is refused. */
	said("sendto-address", sendto(pair, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&place, sizeof place));
	close(pair);
	close(internet);
}

static void processes(void)
{
	char byte;
	struct iovec mine = { &byte, 1 }, theirs = { (void *)directory, 1 };

	said("kill-parent", kill(getppid(), 0));
	said("tgkill-parent", real_syscall(SYS_tgkill, getppid(), getppid(), 0));
	closed("pidfd_open", real_syscall(SYS_pidfd_open, getppid(), 0));
	said("ptrace-attach", ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0 ? ptrace(PTRACE_DETACH, getppid(), 0, 0), 0 : -1);
	said("process_vm_readv", real_syscall(SYS_process_vm_readv, getpid(), &mine, 1, &theirs, 1, 0));
	said("setpriority", real_syscall(SYS_setpriority, 0, getppid(), 0));
}

static void privileges(void)
{
	uint32_t header[2] = { 0x20080522, 0 }, data[6];

	said("setuid", real_syscall(SYS_setuid, 0));
	said("setgroups", real_syscall(SYS_setgroups, 0, NULL));
	real_syscall(SYS_capget, header, data);
	errno = EPERM;
	/* To load modules: CAP_SYS_MODULE. */
	said("has-capability", data[0] & 1 << 16 ? 0 : -1);
	said("capset", real_syscall(SYS_capset, header, data));
	errno = EPERM;
	said("is-dumpable", prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 ? 0 : -1);
	said("set-dumpable", prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
	said("prlimit", real_syscall(SYS_prlimit64, getppid(), 7, NULL, data));
	said("unshare", unshare(CLONE_NEWUTS));
	said("unshare-user", unshare(CLONE_NEWUSER | CLONE_NEWNS));
	said("setns", real_syscall(SYS_setns, report, 0));
	said("chroot", chroot(directory));
	said("pivot_root", real_syscall(SYS_pivot_root, directory, directory));
	said("mount", mount("none", directory, "tmpfs", 0, NULL));
	said("umount", umount2(directory, MNT_DETACH));
	said("reboot", real_syscall(SYS_reboot, 0, 0, 0, 0));
}

static void kernel(void)
{
	struct io_uring_params params = { 0 };
	void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t attributes[16] = { 1, 0 };
	void *data = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* More than any machine has, but not more than the address space. */
	said("much-memory", mmap(NULL, (size_t)1 << 45, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
				== MAP_FAILED ? -1 : 0);
	said("much-shared-memory", mmap(NULL, (size_t)1 << 45, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
					-1, 0) == MAP_FAILED ? -1 : 0);
	said("mmap-exec", code == MAP_FAILED ? -1 : 0);
	said("mprotect-exec", mprotect(data, 4096, PROT_READ | PROT_EXEC));
	closed("io_uring_setup", real_syscall(SYS_io_uring_setup, 4, &params));
	closed("bpf", real_syscall(SYS_bpf, 0, attributes, sizeof attributes));
	closed("perf_event_open", real_syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0));
	closed("userfaultfd", real_syscall(SYS_userfaultfd, 0));
	said("keyctl", real_syscall(SYS_keyctl, 0, -3, 1));
	said("init_module", real_syscall(SYS_init_module, data, 0, ""));
	said("kexec_load", real_syscall(SYS_kexec_load, 0, 0, NULL, 0));
	said("type-on-terminal", ioctl(0, TIOCSTI, "x"));
	said("seccomp", real_syscall(SYS_seccomp, 2, 0, data));
	said("open_by_handle", real_syscall(SYS_open_by_handle_at, AT_FDCWD, data, 0));
	said("syslog", real_syscall(SYS_syslog, 10, NULL, 0));
}

/* Has the program's own ring execute an entry; this is the thread that may submit to it. */
static void by_ring(const char *name, struct io_uring_sqe entry)
{
	const struct io_sqring_offsets *sq = &ring_params.sq_off;
	const struct io_cqring_offsets *cq = &ring_params.cq_off;
	size_t size = cq->cqes + ring_params.cq_entries * sizeof(struct io_uring_cqe) + sq->array + 4096 * 8;
	char *rings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries = mmap(NULL, ring_params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE,
					    MAP_SHARED, ring, IORING_OFF_SQES);
	static uint64_t turn;
	uint32_t tail, mask, seen, count;

	if (rings == MAP_FAILED || entries == MAP_FAILED) {
		said(name, -1);
		return;
	}
	entry.user_data = UINT64_MAX - 77 - turn++;
	tail = *(uint32_t *)(rings + sq->tail);
	mask = *(uint32_t *)(rings + sq->ring_mask);
	entries[tail & mask] = entry;
	if (!(ring_params.flags & IORING_SETUP_NO_SQARRAY))
		*(uint32_t *)(rings + sq->array + 4 * (tail & mask)) = tail & mask;
	seen = *(uint32_t *)(rings + cq->tail);
	__atomic_store_n((uint32_t *)(rings + sq->tail), tail + 1, __ATOMIC_RELEASE);
	/* The program may have queued others that the kernel has not seen. */
	count = tail + 1 - *(uint32_t *)(rings + sq->head);
	if (real_syscall(SYS_io_uring_enter, ring, count, 0, IORING_ENTER_GETEVENTS, NULL, 0) < 0) {
		said(name, -1);
		return;
	}
	for (int tries = 0; tries < 100; tries++) {
		uint32_t last = __atomic_load_n((uint32_t *)(rings + cq->tail), __ATOMIC_ACQUIRE);

		for (; seen != last; seen++) {
			struct io_uring_cqe *end = (struct io_uring_cqe *)(rings + cq->cqes)
						   + (seen & *(uint32_t *)(rings + cq->ring_mask));
			if (end->user_data == entry.user_data) {
				errno = -end->res;
				closed(name, end->res < 0 ? -1 : end->res);
				return;
			}
		}
		usleep(1000);
		real_syscall(SYS_io_uring_enter, ring, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
	}
	errno = ETIME;
	said(name, -1);
}

static void rings(void)
{
	static struct sockaddr_un place = { .sun_family = AF_UNIX };
	int pair[2];

	by_ring("ring-openat", (struct io_uring_sqe){
		.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)"/etc/passwd", .open_flags = O_RDONLY });
	by_ring("ring-socket", (struct io_uring_sqe){
		.opcode = IORING_OP_SOCKET, .fd = AF_INET, .off = SOCK_STREAM });
	by_ring("ring-unlink", (struct io_uring_sqe){
		.opcode = IORING_OP_UNLINKAT, .fd = AT_FDCWD, .addr = (uintptr_t)at("by-ring") });
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) {
		snprintf(place.sun_path, sizeof place.sun_path, "%s/sock", directory);
		by_ring("ring-connect", (struct io_uring_sqe){ .opcode = IORING_OP_CONNECT, .fd = pair[0],
			.addr = (uintptr_t)&place, .off = sizeof place });
	} else {
		by_ring("ring-connect", (struct io_uring_sqe){ .opcode = IORING_OP_CONNECT, .fd = 0,
			.addr = (uintptr_t)&place, .off = sizeof place });
	}
	by_ring("ring-epoll", (struct io_uring_sqe){ .opcode = IORING_OP_EPOLL_CTL, .fd = -1 });
}

static void attack(void)
{
	if (done++ || report < 0)
		return;
	files();
	programs();
	sockets();
	processes();
	kernel();
	if (ring >= 0)
		rings();
	privileges();
	real_write(report, "end\n", 4);
	/* The ring and the directory are not what the program left them as. */
	_exit(0);
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("ATTACK_REPORT"), *place = getenv("ATTACK_DIR");

	real_syscall = dlsym(RTLD_NEXT, "syscall");
	real_write = dlsym(RTLD_NEXT, "write");
	if (!path || !place)
		return;
	snprintf(directory, sizeof directory, "%s", place);
	report = fcntl(open(path, O_WRONLY | O_CREAT | O_APPEND, 0600), F_DUPFD_CLOEXEC, 200);
}

__attribute__((destructor)) static void end(void)
{
	attack();
}

ssize_t write(int fd, const void *bytes, size_t count)
{
	if (fd == STDOUT_FILENO || fd == STDERR_FILENO)
		attack();
	return real_write(fd, bytes, count);
}

long syscall(long number, ...)
{
	va_list list;
	long a[6], result;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	result = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_io_uring_setup && result >= 0 && ring < 0) {
		ring = result;
		memcpy(&ring_params, (void *)a[1], sizeof ring_params);
	}
	return result;
}
