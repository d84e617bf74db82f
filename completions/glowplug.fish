# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_glowplug_global_optspecs
    string join \n v/verbose h/help V/version
end

function __fish_glowplug_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_glowplug_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_glowplug_using_subcommand
    set -l cmd (__fish_glowplug_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c glowplug -n "__fish_glowplug_needs_command" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_needs_command" -s V -l version -d 'Print version'
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "network-kargs" -d 'Write the network of the config drive as kernel arguments'
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "check" -d 'Explain a config drive or a document, or report this boot'
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "attributes" -d 'Write the metadata of the drive as an EnvironmentFile='
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "hostname" -d 'Write the hostname of the drive to a file'
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "ssh-keys" -d 'Write the public keys of the drive to a user\'s home directory'
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "metadata" -d 'Print the metadata of the drive'
complete -c glowplug -n "__fish_glowplug_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l provider -d 'Set the platform instead of detecting it' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l config-drive -d 'Read this drive: directory, image or device' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l wait -d 'Wait this long for the drive' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l root -d 'Use this directory as root' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l renderer -d 'Select the renderer' -r -f -a "network-manager\t''
network-manager-profiles\t''
systemd-networkd\t''
network-legacy\t''"
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l default-value -d 'Use these arguments if the drive has none' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l on-error -d 'Handle an invalid document' -r -f -a "fail\t''
default\t''"
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l cmdline -d 'Detect the platform by kernel arguments only'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l any-drive -d 'Accept the drive of another machine'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l require-default -d 'Fail if a default is needed and not set'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l neednet -d 'Write rd.neednet=1 with the network'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -l print -d 'Print the result and write nothing'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_using_subcommand network-kargs" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_using_subcommand check" -l renderer -d 'Select the renderer' -r -f -a "network-manager\t''
network-manager-profiles\t''
systemd-networkd\t''
network-legacy\t''"
complete -c glowplug -n "__fish_glowplug_using_subcommand check" -l root -d 'Use this directory as root' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand check" -l json -d 'Print JSON'
complete -c glowplug -n "__fish_glowplug_using_subcommand check" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l provider -d 'Set the platform instead of detecting it' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l config-drive -d 'Read this drive: directory, image or device' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l wait -d 'Wait this long for the drive' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l root -d 'Use this directory as root' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l output -d 'Write to this file' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l prefix -d 'Set the prefix of the names' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l cmdline -d 'Detect the platform by kernel arguments only'
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -l any-drive -d 'Accept the drive of another machine'
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_using_subcommand attributes" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l provider -d 'Set the platform instead of detecting it' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l config-drive -d 'Read this drive: directory, image or device' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l wait -d 'Wait this long for the drive' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l root -d 'Use this directory as root' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l output -d 'Write to this file, such as /sysroot/etc/hostname' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l cmdline -d 'Detect the platform by kernel arguments only'
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -l any-drive -d 'Accept the drive of another machine'
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_using_subcommand hostname" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l provider -d 'Set the platform instead of detecting it' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l config-drive -d 'Read this drive: directory, image or device' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l wait -d 'Wait this long for the drive' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l root -d 'Use this directory as root' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l user -d 'Write the keys for this user of /etc/passwd' -r
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l key-file -d 'Select the file name' -r -f -a "glowplug\t''
afterburn\t''"
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l cmdline -d 'Detect the platform by kernel arguments only'
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -l any-drive -d 'Accept the drive of another machine'
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_using_subcommand ssh-keys" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_using_subcommand metadata" -l config-drive -d 'Read this drive: directory, image or device' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand metadata" -l root -d 'Use this directory as root' -r -F
complete -c glowplug -n "__fish_glowplug_using_subcommand metadata" -l json -d 'Print one JSON object'
complete -c glowplug -n "__fish_glowplug_using_subcommand metadata" -s v -l verbose -d 'Log each step and each device'
complete -c glowplug -n "__fish_glowplug_using_subcommand metadata" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "network-kargs" -d 'Write the network of the config drive as kernel arguments'
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "check" -d 'Explain a config drive or a document, or report this boot'
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "attributes" -d 'Write the metadata of the drive as an EnvironmentFile='
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "hostname" -d 'Write the hostname of the drive to a file'
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "ssh-keys" -d 'Write the public keys of the drive to a user\'s home directory'
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "metadata" -d 'Print the metadata of the drive'
complete -c glowplug -n "__fish_glowplug_using_subcommand help; and not __fish_seen_subcommand_from network-kargs check attributes hostname ssh-keys metadata help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
