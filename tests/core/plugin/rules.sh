#!/bin/sh
# The rules that every plugin of this tree keeps, read from the built files and the source: one
# exported symbol, nothing that ends the process or touches the environment, no constructor, no header of heddle's inside.
# usage: rules.sh BUILT_PLUGINS SOURCE_OF_PLUGINS
set -u
built=$1 source=$2 failed=0 seen=0

fault()
{
    echo "rules: $*" >&2
    failed=1
}

for file in "$built"/*/heddle-*.so; do
    seen=$((seen + 1))
    name=$(basename "$file" .so)
    exported=$(nm -D --defined-only "$file" | awk '{ print $3 }' | tr '\n' ' ')
    [ "$exported" = "heddle_plugin_v1 " ] || fault "$name exports '$exported', only heddle_plugin_v1 is allowed"
    used=$(nm -D --undefined-only "$file" | awk '{ print $2 }' | sed 's/@.*//' |
        grep -x -E 'getenv|secure_getenv|setenv|putenv|unsetenv|exit|_exit|quick_exit|atexit|system|dlclose' | tr '\n' ' ')
    # credentials and addresses that all clients of S3 take from there: AWS_...
    [ "$name" = heddle-ckpt-s3 ] && used=$(echo "$used" | sed 's/\(^\| \)getenv \{0,1\}/\1/')
    [ -z "$used" ] || fault "$name uses $used"
done
[ $seen -gt 0 ] || fault "no plugins in $built"

constructors=$(grep -rnE '__attribute__.*\((con|de)structor' "$source" --exclude-dir=tests --include='*.c' --include='*.h')
[ -z "$constructors" ] || fault "constructors: $constructors"
foreign=$(grep -rnE '#include "(core|cli|tests)/' "$source" --exclude-dir=tests --include='*.c' --include='*.h')
[ -z "$foreign" ] || fault "includes of heddle's inside: $foreign"
exit $failed
