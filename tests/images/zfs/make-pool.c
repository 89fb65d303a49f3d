/* make-pool POOL ASHIFT END TOP... - makes a pool in files, through libzpool: no kernel module is needed.
 *
 * TOP is KIND:FILE[,FILE...] with KIND one of disk, mirror, raidz1, raidz2, log, spare, cache; files have absolute paths.
 * END is export, destroy, or leave: the process ends, as with a crash. With drop-logs,END the logs are removed before that, and
 * leave holes.
 *
 *   cc -o make-pool make-pool.c $(pkg-config --cflags libzfs) -lzpool -lzfs -lnvpair */
#include <fcntl.h>
#include <libnvpair.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of libzpool, whose own headers are those of the kernel. */
typedef struct spa spa_t;
void kernel_init(int mode);
void kernel_fini(void);
int spa_create(const char *name, nvlist_t *root, nvlist_t *props, nvlist_t *zplprops, void *crypto);
int spa_export(const char *name, nvlist_t **config, int force, int hard_force);
int spa_destroy(const char *name);
int spa_open(const char *name, spa_t **spa, const void *tag);
void spa_close(spa_t *spa, const void *tag);
int spa_vdev_remove(spa_t *spa, uint64_t guid, int unspare);
void *spa_get_dsl(spa_t *spa);
void txg_wait_synced(void *pool, uint64_t txg);
int zpool_read_label(int file, nvlist_t **config, int *labels);

enum { MOST = 16, READ_WRITE = 3 };

static void must(int error, const char *what)
{
	if (error) {
		fprintf(stderr, "make-pool: %s: error %d\n", what, error);
		_exit(1);
	}
}

static nvlist_t *leaf(const char *path, uint64_t ashift)
{
	nvlist_t *vdev = fnvlist_alloc();
	/* A block device in a kernel may be what the file is later: a vdev of type "file" would not be opened there. */
	fnvlist_add_string(vdev, "type", "disk");
	fnvlist_add_string(vdev, "path", path);
	fnvlist_add_uint64(vdev, "ashift", ashift);
	fnvlist_add_uint64(vdev, "whole_disk", 0);
	return vdev;
}

static uint64_t guid_of(const char *path)
{
	nvlist_t *config = NULL;
	int file = open(path, O_RDONLY);
	must(file < 0 || zpool_read_label(file, &config, NULL) != 0 || config == NULL, path);
	close(file);
	return fnvlist_lookup_uint64(config, "guid");
}

int main(int argc, char **argv)
{
	static const char *features[] = { "async_destroy", "empty_bpobj", "lz4_compress", "spacemap_histogram",
		"enabled_txg", "hole_birth", "extensible_dataset", "embedded_data", "large_blocks", "skein", NULL };
	nvlist_t *tops[MOST], *spares[MOST], *caches[MOST];
	char *logs[MOST];
	int n_tops = 0, n_spares = 0, n_caches = 0, n_logs = 0;
	if (argc < 5 || argc > 4 + MOST)
		return 2;
	const char *pool = argv[1], *end = argv[3];
	uint64_t ashift = strtoull(argv[2], NULL, 10);
	for (int i = 4; i < argc; i++) {
		nvlist_t *leaves[MOST], *top;
		int n = 0;
		char *kind = strtok(argv[i], ":"), *path, *first = NULL;
		while ((path = strtok(NULL, ",")) != NULL && n < MOST) {
			first = first ? first : path;
			leaves[n++] = leaf(path, ashift);
		}
		must(n == 0, argv[i]);
		if (strcmp(kind, "spare") == 0) {
			spares[n_spares++] = leaves[0];
		} else if (strcmp(kind, "cache") == 0) {
			caches[n_caches++] = leaves[0];
		} else if (strcmp(kind, "disk") == 0 || strcmp(kind, "log") == 0) {
			top = leaves[0];
			if (kind[0] == 'l') {
				fnvlist_add_uint64(top, "is_log", 1);
				fnvlist_add_string(top, "alloc_bias", "log");
				logs[n_logs++] = first;
			}
			tops[n_tops++] = top;
		} else {
			top = fnvlist_alloc();
			if (strncmp(kind, "raidz", 5) == 0) {
				fnvlist_add_string(top, "type", "raidz");
				fnvlist_add_uint64(top, "nparity", strtoull(kind + 5, NULL, 10));
			} else {
				fnvlist_add_string(top, "type", kind);
			}
			fnvlist_add_nvlist_array(top, "children", (const nvlist_t *const *)leaves, n);
			tops[n_tops++] = top;
		}
	}
	nvlist_t *root = fnvlist_alloc(), *props = fnvlist_alloc();
	fnvlist_add_string(root, "type", "root");
	fnvlist_add_nvlist_array(root, "children", (const nvlist_t *const *)tops, n_tops);
	if (n_spares)
		fnvlist_add_nvlist_array(root, "spares", (const nvlist_t *const *)spares, n_spares);
	if (n_caches)
		fnvlist_add_nvlist_array(root, "l2cache", (const nvlist_t *const *)caches, n_caches);
	for (const char **feature = features; *feature; feature++) {
		char name[64];
		snprintf(name, sizeof(name), "feature@%s", *feature);
		fnvlist_add_uint64(props, name, 0);
	}
	fnvlist_add_string(props, "comment", "golden");

	kernel_init(READ_WRITE);
	must(spa_create(pool, root, props, NULL, NULL), "spa_create");
	spa_t *spa;
	must(spa_open(pool, &spa, "make"), "spa_open");
	if (strncmp(end, "drop-logs,", 10) == 0) {
		end += 10;
		for (int i = 0; i < n_logs; i++)
			must(spa_vdev_remove(spa, guid_of(logs[i]), 0), "spa_vdev_remove");
	}
	txg_wait_synced(spa_get_dsl(spa), 0);
	spa_close(spa, "make");
	if (strcmp(end, "leave") == 0)
		_exit(0);
	if (strcmp(end, "destroy") == 0)
		must(spa_destroy(pool), "spa_destroy");
	else
		must(spa_export(pool, NULL, 1, 0), "spa_export");
	kernel_fini();
	return 0;
}
