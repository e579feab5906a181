/* users.c against ordinary and hostile databases. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "users.h"

static char folder[] = "/tmp/bellglass-users-XXXXXX";
static char passwd[64], group[64];

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) < 0)
        abort();
}

static struct text as_text(const char *value)
{
    return (struct text){ (const uint8_t *)value, (uint32_t)strlen(value) };
}

static struct identity who;
static int lookup(const char *name) { return identity_lookup(&who, as_text(name)); }

static void names_numbers_and_groups(void)
{
    write_file(passwd, "root:x:0:0:root:/root:/bin/bash\n\nbroken\nuser:x:1000:1001::/home/user:/bin/sh\nlast:x:7:8::rel:");
    write_file(group, "root:x:0:\nuser:x:1001:user\nadm:x:4:syslog,user\nother:x:5:username\nmore:x:6:user,x");
    CHECK(lookup("user") == 0 && who.uid == 1000 && who.gid == 1001 && strcmp(who.home, "/home/user") == 0);
    CHECK(who.group_count == 3 && who.groups[0] == 1001 && who.groups[1] == 4 && who.groups[2] == 6);
    CHECK(lookup("1000") == 0 && strcmp(who.name, "user") == 0 && who.group_count == 3);
    CHECK(lookup("4242") == 0 && who.uid == 4242 && who.gid == 4242 && strcmp(who.home, "/") == 0 && who.name[0] == 0);
    CHECK(lookup("last") == 0 && who.uid == 7 && strcmp(who.home, "/") == 0 && strcmp(who.shell, "/bin/sh") == 0);
    CHECK(lookup("nobody") == ENOENT && lookup("use") == ENOENT && lookup("-1") == ENOENT && lookup("1x") == ENOENT);
    CHECK(lookup("4294967295") == ENOENT && lookup("4294967294") == 0 && lookup("99999999999") == ENOENT);
    CHECK(strcmp(user_name(1000), "user") == 0 && user_name(999)[0] == 0 && strcmp(group_name(4), "adm") == 0);
}

static void databases_that_are_no_files(void)
{
    unlink(passwd);
    CHECK(lookup("user") == ENOENT && lookup("5") == 0);
    CHECK(mkfifo(passwd, 0644) == 0);
    CHECK(lookup("user") == ENOENT && lookup("5") == 0);
    unlink(passwd);
    CHECK(symlink("/dev/zero", passwd) == 0);
    CHECK(lookup("user") == ENOENT && lookup("5") == 0);
    unlink(passwd);
    CHECK(mkdir(passwd, 0755) == 0);
    CHECK(lookup("user") == ENOENT && lookup("5") == 0);
    rmdir(passwd);
}

static void huge_databases_are_read_in_part(void)
{
    int fd;

    write_file(passwd, "user:x:1000:1001::/home/user:/bin/sh\n");
    CHECK(truncate(passwd, (off_t)1 << 30) == 0);   /* a gigabyte of zeros: one endless line */
    CHECK(lookup("user") == 0 && who.uid == 1000 && lookup("late") == ENOENT);
    fd = open(passwd, O_WRONLY | O_TRUNC);
    for (int i = 0; i < 70000; i++)
        CHECK(write(fd, "x", 1) == 1);
    CHECK(write(fd, "\nafter:x:5:6::/:/bin/sh\n", 24) == 24);
    close(fd);
    CHECK(lookup("after") == 0 && who.uid == 5);
}

void test_users(void)
{
    if (mkdtemp(folder) == NULL)
        abort();
    snprintf(passwd, sizeof passwd, "%s/passwd", folder);
    snprintf(group, sizeof group, "%s/group", folder);
    passwd_path = passwd;
    group_path = group;
    RUN(names_numbers_and_groups);
    RUN(databases_that_are_no_files);
    RUN(huge_databases_are_read_in_part);
    unlink(passwd);
    unlink(group);
    rmdir(folder);
}
