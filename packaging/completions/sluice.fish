# fish completion for sluice and sluice-lab: the words come from the program itself. Without any, fish offers files.
function __sluice_words
    set -l words (commandline -opc)
    set -l found ($words[1] complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c sluice -f -a '(__sluice_words)'
complete -c sluice-lab -f -a '(__sluice_words)'
