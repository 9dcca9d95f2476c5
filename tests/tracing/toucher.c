/* Looks at files in the ways that its arguments name, in order: NAME,PATH[,PATH]. Raw calls, where libc has another. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static char buffer[65536];

static void read_and_close(int fd) {
    if (fd < 0) return;
    while (read(fd, buffer, sizeof buffer) > 0) {}
    close(fd);
}

static void list(int fd) {
    if (fd < 0) return;
    while (syscall(SYS_getdents64, fd, buffer, sizeof buffer) > 0) {}
    close(fd);
}

static void spawn(const char *path) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl(path, path, (char *)0);
        _exit(1);
    }
    int status;
    waitpid(pid, &status, 0);
}

static void one(const char *name, char *p, char *q) {
    struct stat s;
    struct statx x;
    struct statfs f;
    int fd;
#define IS(text) (strcmp(name, text) == 0)
    if (IS("openat")) read_and_close(syscall(SYS_openat, AT_FDCWD, p, O_RDONLY | O_NONBLOCK, 0));
    else if (IS("openat2")) {
        struct open_how how = {.flags = O_RDONLY | O_NONBLOCK, .resolve = RESOLVE_NO_MAGICLINKS};
        read_and_close(syscall(SYS_openat2, AT_FDCWD, p, &how, sizeof how));
    }
    else if (IS("nofollow")) read_and_close(open(p, O_RDONLY | O_NONBLOCK | O_NOFOLLOW));
    else if (IS("opath")) close(open(p, O_PATH));
    else if (IS("below")) {
        fd = open(p, O_RDONLY | O_DIRECTORY);
        read_and_close(openat(fd, q, O_RDONLY | O_NONBLOCK));
        fstatat(fd, q, &s, 0);
        faccessat(fd, q, R_OK, 0);
        close(fd);
    }
    else if (IS("belowpath")) {
        fd = open(p, O_PATH);
        read_and_close(openat(fd, q, O_RDONLY | O_NONBLOCK));
        close(fd);
    }
    else if (IS("fchdir")) {
        int back = open(".", O_RDONLY);
        fd = open(p, O_RDONLY | O_DIRECTORY);
        if (fd >= 0 && fchdir(fd) == 0) read_and_close(openat(AT_FDCWD, q, O_RDONLY | O_NONBLOCK));
        fchdir(back);
        close(fd);
        close(back);
    }
    else if (IS("fstatat")) fstatat(AT_FDCWD, p, &s, 0);
    else if (IS("lfstatat")) fstatat(AT_FDCWD, p, &s, AT_SYMLINK_NOFOLLOW);
    else if (IS("emptypath")) {
        fd = open(p, O_RDONLY | O_NONBLOCK);
        fstatat(fd, "", &s, AT_EMPTY_PATH);
        fstatat(AT_FDCWD, p, &s, AT_EMPTY_PATH);
        close(fd);
    }
    else if (IS("statx")) statx(AT_FDCWD, p, 0, STATX_BASIC_STATS, &x);
    else if (IS("statfs")) statfs(p, &f);
    else if (IS("faccessat")) syscall(SYS_faccessat, AT_FDCWD, p, R_OK);
    else if (IS("faccessat2")) syscall(SYS_faccessat2, AT_FDCWD, p, X_OK, 0);
    else if (IS("readlinkat")) readlinkat(AT_FDCWD, p, buffer, sizeof buffer);
    else if (IS("list")) list(open(p, O_RDONLY | O_DIRECTORY));
    else if (IS("getxattr")) getxattr(p, "user.none", buffer, 10);
    else if (IS("llistxattr")) llistxattr(p, buffer, 100);
    else if (IS("inotify")) {
        fd = inotify_init1(0);
        inotify_add_watch(fd, p, IN_MODIFY);
        close(fd);
    }
    else if (IS("chdir")) {
        fd = open(".", O_RDONLY);
        if (chdir(p) == 0) fstatat(AT_FDCWD, "..", &s, 0);
        fchdir(fd);
        close(fd);
    }
    else if (IS("execve")) spawn(p);
    else if (IS("procfd")) {
        fd = open(p, O_RDONLY | O_NONBLOCK);
        sprintf(buffer, "/proc/self/fd/%d", fd);
        read_and_close(open(buffer, O_RDONLY | O_NONBLOCK));
        close(fd);
    }
    else if (IS("proccwd")) {
        sprintf(buffer, "/proc/self/cwd/%s", p);
        read_and_close(open(buffer, O_RDONLY | O_NONBLOCK));
    }
    else if (IS("pageend")) {  /* the last byte of a page that has none behind it, and a path over two pages */
        char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(pages + 2 * 4096, 4096);
        char *at = strcpy(pages + 2 * 4096 - strlen(p) - 1, p);
        read_and_close(open(at, O_RDONLY | O_NONBLOCK));
        at = strcpy(pages + 4096 - strlen(p) / 2, p);
        read_and_close(open(at, O_RDONLY | O_NONBLOCK));
        munmap(pages, 2 * 4096);
    }
    else if (IS("longpath")) {
        buffer[0] = 0;
        for (int i = 0; i < 1500; i++) strcat(buffer, "./");
        strcat(buffer, p);
        read_and_close(open(buffer, O_RDONLY | O_NONBLOCK));
    }
    else if (IS("badaddress")) open((char *)8, O_RDONLY);
    else if (IS("create")) close(openat(AT_FDCWD, p, O_WRONLY | O_NONBLOCK | O_CREAT | O_TRUNC, 0644));
    else if (IS("createnew")) close(openat(AT_FDCWD, p, O_WRONLY | O_NONBLOCK | O_CREAT | O_EXCL, 0644));
    else if (IS("write")) {
        fd = openat(AT_FDCWD, p, O_WRONLY | O_NONBLOCK | O_CREAT | O_TRUNC, 0644);
        write(fd, "text", 4);
        close(fd);
    }
    else if (IS("append")) {
        fd = openat(AT_FDCWD, p, O_WRONLY | O_NONBLOCK | O_APPEND);
        write(fd, "more", 4);
        close(fd);
    }
    else if (IS("truncate")) truncate(p, 1);
    else if (IS("mkdirat")) mkdirat(AT_FDCWD, p, 0755);
    else if (IS("mkfifo")) mknodat(AT_FDCWD, p, S_IFIFO | 0644, 0);
    else if (IS("unlinkat")) unlinkat(AT_FDCWD, p, 0);
    else if (IS("rmdir")) unlinkat(AT_FDCWD, p, AT_REMOVEDIR);
    else if (IS("renameat")) renameat(AT_FDCWD, p, AT_FDCWD, q);
    else if (IS("linkat")) linkat(AT_FDCWD, p, AT_FDCWD, q, 0);
    else if (IS("symlinkat")) symlinkat(p, AT_FDCWD, q);
    else if (IS("fchmodat")) fchmodat(AT_FDCWD, p, 0700, 0);
    else if (IS("utimensat")) utimensat(AT_FDCWD, p, NULL, 0);
#ifdef SYS_open
    else if (IS("open")) read_and_close(syscall(SYS_open, p, O_RDONLY | O_NONBLOCK, 0));
    else if (IS("creat")) close(syscall(SYS_creat, p, 0644));
    else if (IS("stat")) syscall(SYS_stat, p, buffer);
    else if (IS("lstat")) syscall(SYS_lstat, p, buffer);
    else if (IS("access")) syscall(SYS_access, p, F_OK);
    else if (IS("readlink")) syscall(SYS_readlink, p, buffer, 100);
    else if (IS("mkdir")) syscall(SYS_mkdir, p, 0755);
    else if (IS("unlink")) syscall(SYS_unlink, p);
    else if (IS("rename")) syscall(SYS_rename, p, q);
    else if (IS("link")) syscall(SYS_link, p, q);
    else if (IS("symlink")) syscall(SYS_symlink, p, q);
    else if (IS("chmod")) syscall(SYS_chmod, p, 0750);
#endif
    else fprintf(stderr, "%s is not known\n", name);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *name = strtok(argv[i], ","), *first = strtok(NULL, ","), *second = strtok(NULL, ",");
        one(name, first, second);
    }
    return 0;
}
