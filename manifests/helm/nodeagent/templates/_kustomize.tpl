{{/*
The objects of this chart are those of base/, components/ and overlays/, which `kubectl apply -k` takes, too. The
templates here put them together as kustomize does; objects.yaml says which of them for what values.
*/}}

{{/* A file's text, with what values change in the words of any of them. Of: root, path. */}}
{{- define "nodeagent.file" -}}
{{- $values := .root.Values -}}
{{- $text := .root.Files.Get .path | required (printf "the chart lacks %s" .path) -}}
{{- $text = $text | replace "managed-by: kustomize" "managed-by: Helm" -}}
{{- if or $values.dra.nvidiaDriver (and $values.dra.nvidiaNames (hasSuffix "/configurations.yaml" .path)) -}}
  {{- $text = $text | replace "['gpu.nodeagent.io']" "['gpu.nodeagent.io', 'gpu.nvidia.com']" -}}
{{- end -}}
{{- if $values.dra.nvidiaDriver -}}
  {{- $text = $text | replace "[gpu.nodeagent.io]" "[gpu.nodeagent.io, gpu.nvidia.com]" -}}
  {{- $text = $text | replace "device.driver == 'gpu.nodeagent.io'" "device.driver == 'gpu.nvidia.com'" -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* Adds a folder's resources and ConfigMaps to the list `state.objects`, and patches what is there: a kustomization
of `resources`, `configMapGenerator` and strategic merge `patches`. Its JSON patches are words of the template
above. Of: root, state, folder. */}}
{{- define "nodeagent.add" -}}
{{- $root := .root -}}
{{- $state := .state -}}
{{- $folder := .folder -}}
{{- $kustomization := include "nodeagent.file" (dict "root" $root "path" (print $folder "/kustomization.yaml")) | fromYaml -}}
{{- range $name := $kustomization.resources -}}
  {{- if hasSuffix ".yaml" $name -}}
    {{- $text := include "nodeagent.file" (dict "root" $root "path" (print $folder "/" $name)) -}}
    {{- range regexSplit "(?m)^---$" $text -1 -}}
      {{- $_ := set $state "objects" (append $state.objects (fromYaml .)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $map := $kustomization.configMapGenerator -}}
  {{- if ne $map.name "nodeagent" -}}{{/* an overlay's settings: the values say them */}}
  {{- $data := dict -}}
  {{- range $map.files -}}
    {{- $path := print $folder "/" (splitList "=" . | last) -}}
    {{- $_ := set $data (splitList "=" . | first) (include "nodeagent.file" (dict "root" $root "path" $path)) -}}
  {{- end -}}
  {{- $metadata := dict "name" $map.name "namespace" $map.namespace "labels" $map.options.labels -}}
  {{- $object := dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $metadata "data" $data -}}
  {{- $_ := set $state "objects" (append $state.objects $object) -}}
  {{- end -}}
{{- end -}}
{{- range $kustomization.patches -}}
  {{- $text := .patch | default "" -}}
  {{- if .path -}}
    {{- $text = include "nodeagent.file" (dict "root" $root "path" (print $folder "/" .path)) -}}
  {{- end -}}
  {{- if not (hasPrefix "-" $text) -}}
    {{- include "nodeagent.patch" (dict "state" $state "patch" (fromYaml $text)) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Changes the object that the patch names. Of: state, patch. */}}
{{- define "nodeagent.patch" -}}
{{- $patch := .patch -}}
{{- range .state.objects -}}
  {{- if and (eq .kind $patch.kind) (eq .metadata.name $patch.metadata.name) -}}
    {{- include "nodeagent.merge" (dict "to" . "from" $patch) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Changes `to` as a strategic merge patch: null removes a key, items of some lists are merged by their key, with the
patch's items first, and other lists are replaced. Of: to, from. */}}
{{- define "nodeagent.merge" -}}
{{- $keys := dict "containers" "name" "initContainers" "name" "env" "name" "volumes" "name" "volumeMounts" "mountPath" "ports" "containerPort" -}}
{{- $to := .to -}}
{{- range $name, $new := .from -}}
  {{- $old := get $to $name -}}
  {{- if kindIs "invalid" $new -}}
    {{- $_ := unset $to $name -}}
  {{- else if kindIs "map" $new -}}
    {{- $old = $old | default dict -}}
    {{- include "nodeagent.merge" (dict "to" $old "from" $new) -}}
    {{- $_ := set $to $name $old -}}
  {{- else if and (kindIs "slice" $new) (hasKey $keys $name) -}}
    {{- $key := get $keys $name -}}
    {{- $merged := list -}}
    {{- $named := list -}}
    {{- range $item := $new -}}
      {{- $named = append $named (get $item $key) -}}
      {{- $target := dict -}}
      {{- range $old | default list -}}
        {{- if eq (get . $key) (get $item $key) -}}{{- $target = . -}}{{- end -}}
      {{- end -}}
      {{- if ne (get $item "$patch") "delete" -}}
        {{- include "nodeagent.merge" (dict "to" $target "from" $item) -}}
        {{- $merged = append $merged $target -}}
      {{- end -}}
    {{- end -}}
    {{- range $old | default list -}}
      {{- if not (has (get . $key) $named) -}}{{- $merged = append $merged . -}}{{- end -}}
    {{- end -}}
    {{- $_ := set $to $name $merged -}}
  {{- else -}}
    {{- $_ := set $to $name $new -}}
  {{- end -}}
{{- end -}}
{{- end -}}
